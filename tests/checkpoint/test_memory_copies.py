"""Copies of the state in the memory of the nodes: newer than the last checkpoint, and verified like one."""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, CheckpointError, Restored, list_checkpoints
from clusterdp.checkpoint.save import memory_copies
from clusterdp.checkpoint.save.memory_copies import check_room, memory_of_job
from clusterdp.storage import MemoryStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.test_sharded import Run
from tests.checkpoint.training import Counter, Training
from tests.keepers import Node, keepers

LARGE = 15_000_000
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with keepers(tmp_path / "run", "n1", "n2", key=uuid.uuid4().hex) as found:
        yield found


@pytest.fixture
def storage(nodes: list[Node]) -> MemoryStorage:
    return MemoryStorage(nodes[0].key, nodes[0].name)


def checkpointer(tmp_path: Path, storage: MemoryStorage, state: Any = None, **options: Any) -> Checkpointer:
    return Checkpointer(tmp_path / "run", state or {"x": Counter()}, memory=storage, **options)


def copy(checkpointer: Checkpointer, step: int) -> None:
    checkpointer.copy(step)
    assert checkpointer.wait() is None


def restored(tmp_path: Path, storage: MemoryStorage, step: int | None = None) -> tuple[int, bool] | None:
    """Step and place of the checkpoint that a new process restores."""
    found = checkpointer(tmp_path, MemoryStorage(storage._key, storage._node)).restore(step)
    return (found.step, found.from_memory) if found else None


def tokens(storage: MemoryStorage) -> int:
    return len({name.partition("MANIFEST.")[2] for name in storage.names() if "MANIFEST." in name})


def test_training_restored_from_memory_continues_bit_for_bit(tmp_path: Path, storage: MemoryStorage) -> None:
    training = Training(seed=1, adam=True)
    for _ in range(3):
        training.step()
    here = checkpointer(tmp_path, storage, training.state)
    here.save(2)
    copy(here, 3)
    for _ in range(3):
        training.step()
    again = Training(seed=2, adam=True)
    there = checkpointer(tmp_path, storage, again.state)
    found = there.restore()
    assert found is not None
    assert (found.step, found.exact, found.from_memory) == (3, True, True)
    there.restore_rng()
    for _ in range(3):
        again.step()
    assert again.digest() == training.digest()


def test_newest_of_copies_and_checkpoints_is_restored(tmp_path: Path, storage: MemoryStorage) -> None:
    assert restored(tmp_path, storage) is None
    here = checkpointer(tmp_path, storage)
    copy(here, 1)
    assert restored(tmp_path, storage) == (1, True)
    here.save(2)
    assert restored(tmp_path, storage) == (2, False)
    copy(here, 3)
    assert restored(tmp_path, storage) == (3, True)
    assert restored(tmp_path, storage, step=2) == (2, False)
    after = checkpointer(tmp_path, storage)
    after.restore()
    after.save(4)
    assert restored(tmp_path, storage) == (4, False)
    copy(after, 5)
    assert restored(tmp_path, storage) == (5, True)


def test_clock_stepping_back_changes_no_order(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(2_000_000_000, 0, -3600))
    clock = SimpleNamespace(time=lambda: float(next(now)), time_ns=time.time_ns)
    monkeypatch.setattr("clusterdp.checkpoint.save.commit.time", clock)
    here = checkpointer(tmp_path, storage)
    here.save(1)
    for step in (2, 3):
        copy(here, step)
        assert restored(tmp_path, storage) == (step, True)
    after = checkpointer(tmp_path, storage)
    after.restore()
    copy(after, 4)
    assert restored(tmp_path, storage) == (4, True)
    after.save(5)
    assert restored(tmp_path, storage) == (5, False)


def test_copies_of_later_steps_are_not_restored_after_a_rollback(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.save(1)
    here.save(2)
    copy(here, 3)
    back = checkpointer(tmp_path, storage)
    back.restore(1, retire_later=True)
    assert restored(tmp_path, storage) == (1, False)
    copy(back, 2)
    assert restored(tmp_path, storage) == (2, True)


def test_memory_holds_one_copy_between_two_copies(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    for step in range(1, 5):
        copy(here, step)
        assert tokens(storage) == 1
    after = checkpointer(tmp_path, storage)
    copy(after, 5)
    assert (tokens(storage), len(storage.names())) == (1, len(storage.names()))
    assert {name.partition("/")[0] for name in storage.names()} == {"step_00000005"}


def test_copy_of_another_number_of_ranks_is_not_restored(
    tmp_path: Path, storage: MemoryStorage, nodes: list[Node]
) -> None:
    on_ranks(2, save_then_copy, str(tmp_path), [nodes[0].key] * 2, [nodes[0].name] * 2)
    state = {**Training(seed=1, adam=True).state, "large": large(0)}
    found = checkpointer(tmp_path, storage, state).restore()
    assert found is not None
    assert (found.step, found.from_memory) == (1, False)


def save_then_copy(
    rank: int, size: int, folder: str, keys: list[str], names: list[str], count: int = 10, spare: bool = False
) -> str:
    """Saves step 1, and copies step 3. Returns the state three steps later."""
    os.environ["SLURMD_NODENAME"] = names[rank]
    training = Training(seed=1, adam=True, ddp=size > 1)
    training.warm_up()
    memory = MemoryStorage(keys[rank], names[rank], may_lose_nodes=spare)
    here = checkpointer(Path(folder), memory, {**training.state, "large": large(1, count)})
    training.step()
    here.save(1)
    training.step()
    training.step()
    training.loader.state["consumed"] = 10 + rank
    copy(here, 3)
    for _ in range(3):
        training.step()
    return training.digest()


def large(step: int, count: int = 10) -> Counter:
    """With LARGE elements, slices on three ranks are longer than a read (16 MB)."""
    found = Counter()
    found.state = {"all": torch.arange(count, dtype=torch.int32) * step}
    return found


def restore_and_go_on(
    rank: int, size: int, folder: str, keys: list[str], names: list[str], count: int = 10, spare: bool = False
) -> tuple[int, bool, int, str]:
    os.environ["SLURMD_NODENAME"] = names[rank]
    training, values = Training(seed=2, adam=True, ddp=size > 1), large(0, count)
    training.warm_up()
    memory = MemoryStorage(keys[rank], names[rank], may_lose_nodes=spare)
    here = checkpointer(Path(folder), memory, {**training.state, "large": values})
    found = here.restore()
    assert isinstance(found, Restored)
    assert torch.equal(values.state["all"], large(1, count).state["all"])
    here.restore_rng()
    own = training.loader.state["consumed"]
    for _ in range(3):
        training.step()
    return found.step, found.from_memory, own, training.digest()


def test_ranks_restore_exactly_from_the_memory_of_several_nodes(tmp_path: Path, nodes: list[Node]) -> None:
    keys, names = [nodes[0].key] * 3, ["n1", "n1", "n2"]
    expected = on_ranks(3, save_then_copy, str(tmp_path), keys, names, LARGE)
    found = on_ranks(3, restore_and_go_on, str(tmp_path), keys, names, LARGE)
    assert [answer[:3] for answer in found] == [(3, True, 10), (3, True, 11), (3, True, 12)]
    assert [answer[3] for answer in found] == expected
    files = [name.rpartition("/")[2][18:] for name in MemoryStorage(nodes[1].key, "n2").names()]
    assert files and all(file.startswith("r0002") for file in files), "a node has only its own ranks' files"


def test_lost_node_memory_makes_all_ranks_restore_from_disk(tmp_path: Path, nodes: list[Node]) -> None:
    keys, names = [nodes[0].key] * 3, ["n1", "n1", "n2"]
    on_ranks(3, save_then_copy, str(tmp_path), keys, names)
    nodes[1].end()
    found = on_ranks(3, restore_and_go_on, str(tmp_path), keys, names)
    assert [answer[:2] for answer in found] == [(1, False)] * 3


def damage(storage: MemoryStorage, rng: random.Random) -> str:
    """Changes, cuts or removes one file of the copy. Returns a description."""
    name = rng.choice(storage.names())
    data, kind = bytearray(storage.read(name)), rng.choice(("flip", "flip", "flip", "cut", "zeros", "gone"))
    at = rng.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    else:
        data[at : at + 100] = bytes(len(data[at : at + 100]))
    storage.remove(name)
    if kind != "gone":
        storage.write(name, [memoryview(data)])
    return f"{kind} {at} {name}"


def test_no_damaged_copy_is_restored(tmp_path: Path, nodes: list[Node], storage: MemoryStorage) -> None:
    seed = int(os.environ.get("CLUSTERDP_SEED", "0")) or random.randrange(1 << 30)
    rng, count = random.Random(seed), int(os.environ.get("CLUSTERDP_DAMAGES", "25"))
    saved = numbers(1.0)
    here = checkpointer(tmp_path, storage, saved)
    here.save(1)
    saved["x"].state = numbers(2.0)["x"].state
    for turn in range(count + 1):
        copy(here, 2)
        before = {name: storage.read(name) for name in storage.names()}
        what = damage(MemoryStorage(nodes[0].key, "n1"), rng) if turn else "none"
        storage.forget_all()
        if turn and before == {name: storage.read(name) for name in storage.names()}:
            continue  # zeros over zeros
        state = numbers(0.0)
        found = checkpointer(tmp_path, MemoryStorage(nodes[0].key, "n1"), state).restore()
        assert found is not None
        assert found.from_memory == (not turn), (seed, turn, what)
        expected = numbers(1.0 if turn else 2.0)["x"].state
        assert all(torch.equal(value, expected[key]) for key, value in state["x"].state.items())


def numbers(fill: float) -> dict[str, Any]:
    state, own = Counter(), Counter(per_rank=True)
    state.state = {"a": torch.full((1001,), fill), "b": torch.full((400_000,), fill, dtype=torch.float64)}
    own.state = {"c": torch.full((7,), fill)}
    return {"x": state, "own": own}


def test_damaged_copy_without_a_checkpoint_changes_no_tensor(
    tmp_path: Path, nodes: list[Node], storage: MemoryStorage
) -> None:
    model = torch.nn.Linear(600, 600)
    copy(checkpointer(tmp_path, storage, {"model": model}), 1)
    (name,) = (name for name in storage.names() if name.endswith("-of-0001.safetensors"))
    data = bytearray(storage.read(name))
    data[-1] ^= 1
    storage.remove(name)
    storage.write(name, [memoryview(data)])
    other = torch.nn.Linear(600, 600)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    here = checkpointer(tmp_path, MemoryStorage(nodes[0].key, "n1"), {"model": other})
    assert here.restore() is None
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    assert storage.names() == []


def test_rank_of_an_earlier_life_cannot_change_the_copies(
    tmp_path: Path, nodes: list[Node], storage: MemoryStorage
) -> None:
    zombie = checkpointer(tmp_path, storage)
    copy(zombie, 1)
    after = checkpointer(tmp_path, MemoryStorage(nodes[0].key, "n1", life=1))
    copy(after, 2)
    copy(zombie, 9)
    zombie._copies.done("")  # type: ignore[union-attr]
    assert restored(tmp_path, storage) == (2, True)


def test_failed_copies_are_tried_again_later_each_time(
    tmp_path: Path, nodes: list[Node], storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    here = checkpointer(tmp_path, storage)
    copy(here, 1)
    assert here.copy_pause_s(3.0) == 3.0
    nodes[0].end()
    pauses = []
    for step in range(2, 12):
        copy(here, step)
        pauses.append(here.copy_pause_s(3.0))
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    (line,) = caplog.messages
    assert "the state is not copied to the memory of the nodes, which is tried again: memory of n1/step_000" in line
    with keepers(tmp_path / "run", "n1", key=nodes[0].key):
        copy(here, 12)
        assert restored(tmp_path, storage) == (12, True)
    assert here.copy_pause_s(3.0) == 3.0


def test_full_memory_keeps_the_last_copy_alone(
    tmp_path: Path, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = checkpointer(tmp_path, storage)
    for step in (1, 2, 3):
        copy(here, step)
    assert storage_of(here).spare_bytes > 0
    monkeypatch.setattr(memory_copies, "memory_of_job", lambda root: (1000.0, 1000.0))
    copy(here, 4)
    assert (restored(tmp_path, storage), storage_of(here).spare_bytes) == ((3, True), 0)
    assert tokens(storage) == 1


def storage_of(checkpointer: Checkpointer) -> MemoryStorage:
    assert checkpointer._copies is not None
    return checkpointer._copies.storage


def test_restore_removes_all_other_copies(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    copy(here, 1)
    storage.write("step_00000002/" + "0" * 12 + "-0001-r0000.json", [])  # of a rank that was killed in a copy
    checkpointer(tmp_path, storage).restore()
    assert {name.partition("/")[0] for name in storage.names()} == {"step_00000001"}
    here.save(3)
    checkpointer(tmp_path, storage).restore()
    assert storage.names() == []


def test_copies_after_a_damaged_checkpoint_are_restored(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.save(1)
    here.save(2)
    for path in (tmp_path / "run/step_00000002").glob("*-of-*"):
        path.write_bytes(b"")
    after = checkpointer(tmp_path, storage)
    found = after.restore()
    assert found is not None
    assert found.step == 1
    copy(after, 2)
    assert restored(tmp_path, storage) == (2, True)


def test_copies_after_a_rollback_are_restored_by_the_same_command(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.save(1)
    here.save(2)
    back = checkpointer(tmp_path, storage)
    back.restore(1, retire_later=True)
    copy(back, 2)
    again = checkpointer(tmp_path, MemoryStorage(storage._key, storage._node)).restore(1, retire_later=True)
    assert again is not None
    assert (again.step, again.from_memory) == (2, True)


def test_copy_of_a_second_phase_outlives_the_restore_of_the_first(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.begin("one", {"x": Counter()})
    here.save(1)
    here.begin("two", {"x": Counter()}, first=1)
    here.save(3)
    copy(here, 4)
    after = checkpointer(tmp_path, MemoryStorage(storage._key, storage._node))
    found = []
    for name, first in (("one", 0), ("two", 1)):
        after.begin(name, {"x": Counter()}, first)
        restored = after.restore()
        assert restored is not None
        found.append((restored.step, restored.from_memory))
    assert found == [(1, False), (4, True)]


def two_phases(rank: int, size: int, folder: str, key: str) -> int:
    """The state of a second phase, copied on every rank before and after its first checkpoint."""
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    here = checkpointer(Path(folder), MemoryStorage(key, name))
    here.begin("one", {"x": Counter()})
    here.save(1)
    here.begin("two", {"x": Counter()}, first=1)
    copy(here, 2)
    here.save(3)
    copy(here, 4)
    return len({token_name.partition("/")[0] for token_name in MemoryStorage(key, name).names()})


def test_ranks_agree_on_copies_of_a_second_phase(tmp_path: Path, nodes: list[Node]) -> None:
    assert on_ranks(2, two_phases, str(tmp_path), nodes[0].key) == [1, 1]


def test_keeper_ending_after_a_commit_leaves_the_ranks_in_step(tmp_path: Path, nodes: list[Node]) -> None:
    assert on_ranks(2, copies_without_a_keeper, str(tmp_path), nodes[0].key, nodes[1].process.pid) == [3, 3]


def copies_without_a_keeper(rank: int, size: int, folder: str, key: str, pid: int) -> int:
    """Kills rank 1's keeper before the first copy is cleaned up. Returns the number of failures."""
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    here = checkpointer(Path(folder), MemoryStorage(key, name))
    copies = here._copies
    assert copies is not None
    done = copies.done
    copies.done = lambda token: (os.kill(pid, 9) if rank == 1 else None, done(token))  # type: ignore[method-assign,assignment]
    for step in range(1, 5):
        copy(here, step)
    return copies.failures


def test_save_during_a_copy_is_not_skipped(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.copy(1)
    assert here.async_save(2)
    here.copy(3)  # in vain, because a save is in progress
    commit = here.wait()
    assert commit is not None
    assert commit.step == 2
    assert [info.step for info in list_checkpoints(tmp_path / "run")] == [2]
    assert (tokens(storage), here.skipped) == (1, 0)


def test_phase_asks_for_copies_only_after_its_first_checkpoint(tmp_path: Path, storage: MemoryStorage) -> None:
    here = checkpointer(tmp_path, storage)
    here.begin("one", {"x": Counter()})
    here.save(1)
    here.begin("two", {"x": Counter()}, first=1)
    assert here.copy_pause_s() is None
    here.save(3)
    assert here.copy_pause_s() is not None


def groups(root: Path, *, used: int, limit: str, second: bool) -> None:
    """A process of a job in a control group of 8 GB, as Slurm makes them."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {64 << 20} kB\nMemFree: 1 kB\nMemAvailable: {32 << 20} kB\n")
    path = "/slurm/job_7/step_0/task_0"
    (root / "proc/self/cgroup").write_text(f"0::{path}\n" if second else f"9:cpu,cpuacct:/x\n4:memory:{path}\n0::/\n")
    base = root / "sys/fs/cgroup" / ("" if second else "memory")
    for folder in ("slurm/job_7/step_0/task_0", "slurm/job_7"):
        group = base / folder
        group.mkdir(parents=True, exist_ok=True)
        names = ("memory.max", "memory.current") if second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        own = limit if folder.endswith("job_7") else "max" if second else str((1 << 63) - 4096)
        for name, value in zip(names, (own, str(used)), strict=True):
            (group / name).write_text(f"{value}\n")
        start = "" if second else "total_"
        (group / "memory.stat").write_text(f"{start}active_file {1 << 20}\n{start}inactive_file {3 << 20}\nanon 5\n")


@pytest.mark.parametrize("second", [True, False])
def test_memory_of_a_job_is_the_least_of_machine_and_control_groups(tmp_path: Path, second: bool) -> None:
    groups(tmp_path, used=6 << 30, limit=str(8 << 30), second=second)
    assert memory_of_job(tmp_path) == (8 << 30, (2 << 30) + (4 << 20))


def test_job_without_limits_may_use_the_memory_of_the_machine(tmp_path: Path) -> None:
    groups(tmp_path, used=6 << 30, limit="max", second=True)
    assert memory_of_job(tmp_path) == (64 << 30, 32 << 30)
    assert memory_of_job(tmp_path / "elsewhere") == (float("inf"), float("inf"))


def test_room_for_copies_is_a_share_of_the_jobs_memory(tmp_path: Path) -> None:
    groups(tmp_path, used=6 << 30, limit=str(8 << 30), second=True)
    check_room(1 << 28, 4, 0, tmp_path)
    with pytest.raises(
        CheckpointError, match=r"^2\.7 GB for copies of the state would be more than 25% of the job's 8"
    ):
        check_room(1 << 28, 4 + 1, 0, tmp_path)
    groups(tmp_path / "full", used=7 << 30, limit=str(8 << 30), second=True)
    with pytest.raises(
        CheckpointError, match=r"^1\.1 GB for a copy of the state would leave less than 10% of the job's"
    ):
        check_room(1 << 28, 4, 0, tmp_path / "full")
    check_room(1 << 28, 4, 1 << 28, tmp_path / "full")  # the memory of the copy before is used again


def save_shards(rank: int, size: int, folder: str, key: str, kind: str, spare: bool = False) -> str:
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    run = Run(kind, size)
    run.step(rank)
    here = checkpointer(Path(folder), MemoryStorage(key, name, may_lose_nodes=spare), run.state)
    here.save(1)
    run.step(rank)
    copy(here, 2)
    run.step(rank)
    return run.here()


def restore_shards(
    rank: int, size: int, folder: str, key: str, kind: str, names: str = "n1 n2", spare: bool = False
) -> tuple[int, bool, str]:
    os.environ["SLURMD_NODENAME"] = name = names.split()[rank]
    run = Run(kind, size, seed=5)
    torch.manual_seed(99 + rank)
    here = checkpointer(Path(folder), MemoryStorage(key, name, may_lose_nodes=spare), run.state)
    found = here.restore()
    assert found is not None
    here.restore_rng()
    run.step(rank)
    return found.step, found.from_memory, run.here()


def test_shards_of_two_nodes_are_restored_exactly_from_memory(tmp_path: Path, nodes: list[Node]) -> None:
    expected = on_ranks(2, save_shards, str(tmp_path), nodes[0].key, "fsdp")
    assert on_ranks(2, restore_shards, str(tmp_path), nodes[0].key, "fsdp") == [(2, True, bits) for bits in expected]
