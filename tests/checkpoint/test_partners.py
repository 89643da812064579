"""Partners: the second place of each rank's files of a copy, in the memory of another node."""

from __future__ import annotations

import os
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterdp.batch.nodes.keeper import HELD
from clusterdp.checkpoint.format.manifest import scan
from clusterdp.checkpoint.save import memory_copies
from clusterdp.checkpoint.state.rank_group import _stride
from clusterdp.errors import CheckpointError
from clusterdp.storage import MemoryStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.test_memory_copies import (
    LARGE,
    checkpointer,
    large,
    restore_and_go_on,
    restore_shards,
    save_shards,
    save_then_copy,
)
from tests.keepers import Node, keepers
from tests.waiting import wait_for

BEFORE = ["n1", "n1", "n2", "n2"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfds are Linux's")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    with keepers(tmp_path / "run", "n1", "n2", "n3", key=uuid.uuid4().hex) as found:
        yield found


@pytest.mark.parametrize(
    ("lost", "after", "count"),
    [(1, ["n1", "n1", "n3", "n3"], LARGE), (0, ["n3", "n3", "n2", "n2"], 10)],
    ids=["last", "first"],
)
def test_ranks_of_a_spare_node_restore_exactly_from_memory(
    tmp_path: Path, nodes: list[Node], lost: int, after: list[str], count: int
) -> None:
    keys = [nodes[0].key] * 4
    expected = on_ranks(4, save_then_copy, str(tmp_path), keys, BEFORE, count, True)
    nodes[lost].end()
    found = on_ranks(4, restore_and_go_on, str(tmp_path), keys, after, count, True)
    assert [answer[:3] for answer in found] == [(3, True, 10 + rank) for rank in range(4)]
    assert [answer[3] for answer in found] == expected


def test_shards_of_a_spare_node_are_restored_exactly_from_memory(tmp_path: Path, nodes: list[Node]) -> None:
    key = nodes[0].key
    expected = on_ranks(2, save_shards, str(tmp_path), key, "fsdp", True)
    nodes[0].end()
    found = on_ranks(2, restore_shards, str(tmp_path), key, "fsdp", "n3 n2", True)
    assert found == [(2, True, bits) for bits in expected]


def test_job_without_spare_nodes_keeps_no_files_of_other_nodes(tmp_path: Path, nodes: list[Node]) -> None:
    on_ranks(4, save_then_copy, str(tmp_path), [nodes[0].key] * 4, BEFORE, 10, False)
    assert all(not name.startswith(HELD) for node in nodes for name in storage(node).names())


def test_damaged_file_of_a_partner_is_not_restored(tmp_path: Path, nodes: list[Node]) -> None:
    keys = [nodes[0].key] * 4
    on_ranks(4, save_then_copy, str(tmp_path), keys, BEFORE, 10, True)
    nodes[1].end()
    memory = storage(nodes[0])
    name = next(name for name in memory.names() if name.startswith(HELD) and name.endswith("-of-0004.safetensors"))
    data = bytearray(memory.read(name))
    data[-1] ^= 1
    memory.remove(name)
    memory.write(name, [memoryview(data)])
    found = on_ranks(4, restore_and_go_on, str(tmp_path), keys, ["n1", "n1", "n3", "n3"], 10, True)
    assert [answer[:2] for answer in found] == [(1, False)] * 4
    assert not memory.names(), "a damaged copy is removed, with the files of other nodes' ranks"


def test_copy_is_restored_only_if_partners_have_it_whole(tmp_path: Path, nodes: list[Node]) -> None:
    keys = [nodes[0].key] * 4
    on_ranks(4, save_then_copy, str(tmp_path), keys, BEFORE, 10, True)
    nodes[1].end()
    memory = storage(nodes[0])
    memory.remove(next(name for name in memory.names() if name.startswith(HELD) and name.endswith("-r0003.json")))
    found = on_ranks(4, restore_and_go_on, str(tmp_path), keys, ["n1", "n1", "n3", "n3"], 10, True)
    assert [answer[:2] for answer in found] == [(1, False)] * 4


def copies_while(rank: int, size: int, folder: str, key: str, fault: str) -> tuple[list[int], list[str], str]:
    """Copies steps 1 to 3, and step 2 with a fault. Returns the steps in memory after each, the names of the files on
    this node at the end, and the result of a restore."""
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    memory = MemoryStorage(key, name, may_lose_nodes=True)
    values = large(1, LARGE // 2)
    here = checkpointer(Path(folder), memory, {"large": values})
    write, steps = memory.write, []
    for step in (1, 2, 3):
        if step == 2 and rank == (0 if "commit" in fault else 1):
            kind = {"partner": HELD, "commit": "MANIFEST"}[fault]

            def refuse(name: str, chunks: object, kind: str = kind) -> None:
                if kind in name:
                    raise OSError(28, "No space left on device")
                write(name, chunks)  # type: ignore[arg-type]

            memory.write = refuse  # type: ignore[method-assign]
        here.copy(step)
        here.wait()
        memory.write = write  # type: ignore[method-assign]
        here._ranks.agree()
        steps.append([info.step for info in scan(MemoryStorage(key, "n1"))[0]])
        here._ranks.agree()
    return [one for some in steps for one in some], memory.names(), str(here.copy_pause_s(1.0))


@pytest.mark.parametrize("fault", ["partner", "commit"])
def test_copy_fails_on_all_ranks_if_one_cannot_be_kept(tmp_path: Path, nodes: list[Node], fault: str) -> None:
    found = on_ranks(2, copies_while, str(tmp_path), nodes[0].key, fault)
    assert [steps for steps, _, _ in found] == [[1, 1, 3]] * 2
    for _, names, _ in found:
        assert {name.removeprefix(f"{HELD}/").partition("/")[0] for name in names} == {"step_00000003"}


def advances_during_an_exchange(rank: int, size: int, folder: str, key: str, by_steps: bool) -> list[bool]:
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    here = checkpointer(Path(folder), MemoryStorage(key, name, may_lose_nodes=True), {"large": large(1)})
    assert here._copies is not None and here._copies.partners is not None
    has_advanced, results = threading.Event(), []
    exchange = here._copies.partners.exchange

    def late(folder: str, token: str) -> None:
        results.append(has_advanced.wait(20))
        exchange(folder, token)

    here._copies.partners.exchange = late  # type: ignore[method-assign]
    here.copy(1)
    if by_steps:
        wait_for("this rank's files", lambda: here.progress() > 0, 10)
        here._ranks.agree()
        here.advance_to(1)
    else:
        here.finish_copy()
    has_advanced.set()
    wait_for("the exchange", lambda: here.progress() > 1, 10)
    here._ranks.agree()
    has_time = here._copies.exchange_s > 0
    here._copies.exchange_s = 1000.0
    here.advance_to(2)
    has_cost = has_time and here._copies.cost_s > 1000
    return [*results, bool(scan(MemoryStorage(key, "n1"))[0]), has_cost]


@pytest.mark.parametrize("by_steps", [True, False])
def test_training_does_not_wait_for_an_exchange(tmp_path: Path, nodes: list[Node], by_steps: bool) -> None:
    found = on_ranks(2, advances_during_an_exchange, str(tmp_path), nodes[0].key, by_steps)
    assert found == [[True, True, True]] * 2


def copies_without_room(rank: int, size: int, folder: str, key: str) -> list[bool]:
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    values = large(1, LARGE // 10)
    here = checkpointer(Path(folder), MemoryStorage(key, name, may_lose_nodes=True), {"large": values})
    memory_copies.memory_of_job = lambda root: (30e6, 30e6)  # a quarter is enough for 3 MB twice, not four times
    found = []
    for step in (1, 2, 3, 4):
        here.copy(step)
        here.wait()
        found.append(bool(MemoryStorage(key, name).names()))
    return found


def copies_beside_others(rank: int, size: int, folder: str, key: str) -> list[str]:
    os.environ["SLURMD_NODENAME"] = name = f"n{rank + 1}"
    others = f"{HELD}/step_00000001/0123456789ab-0001-r0001.json"
    memory = MemoryStorage(key, name)
    memory.write(others, [memoryview(b"{}")])
    here = checkpointer(Path(folder), memory, {"large": large(1)})
    here.copy(1)
    here.wait()
    return [each for each in memory.names() if each.startswith(HELD)]


def test_ranks_without_partners_leave_files_of_others(tmp_path: Path, nodes: list[Node]) -> None:
    found = on_ranks(2, copies_beside_others, str(tmp_path), nodes[0].key)
    assert all(len(names) == 1 for names in found)


def test_copies_have_no_partners_if_there_is_room_for_one_place(tmp_path: Path, nodes: list[Node]) -> None:
    found = on_ranks(2, copies_without_room, str(tmp_path), nodes[0].key)
    assert found == [[False, False, False, True]] * 2


def test_half_received_copy_is_received_again(tmp_path: Path, nodes: list[Node]) -> None:
    keys = [nodes[0].key] * 4
    on_ranks(4, save_then_copy, str(tmp_path), keys, BEFORE, 10, True)
    nodes[1].end()
    held, new = storage(nodes[0]), storage(nodes[2])
    name = next(name for name in held.names() if name.startswith(HELD) and name.endswith("r0003-of-0004.safetensors"))
    new.write(name.removeprefix(f"{HELD}/"), [memoryview(held.read(name))])
    found = on_ranks(4, restore_and_go_on, str(tmp_path), keys, ["n1", "n1", "n3", "n3"], 10, True)
    assert [answer[:2] for answer in found] == [(3, True)] * 4


def test_partner_counts_as_a_second_place_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(size: int, ranks: int, has: int) -> None:
        asked.append(size)
        raise CheckpointError("full")

    monkeypatch.setattr(memory_copies, "check_room", refuse)

    ranks = SimpleNamespace(rank=0, size=2, nodes=2, stride=1)
    memory = MemoryStorage(uuid.uuid4().hex, "n1", may_lose_nodes=True)
    for spare in (True, False):
        memory.may_lose_nodes = spare
        copies = memory_copies.MemoryCopies(memory, ranks, None)  # type: ignore[arg-type]
        staged = SimpleNamespace(slice=b"123", local=None, rank_file=b"4567")
        with pytest.raises(CheckpointError, match="full"):
            copies.writer(1, "token").write(staged, read_back=False)  # type: ignore[arg-type]
    assert asked == [14, 7]


@pytest.mark.parametrize(
    ("names", "stride"),
    [("aabb", 2), ("abab", 1), ("aaabbbccc", 3), ("aaab", 0), ("aaaa", 0), ("ab", 1), ("aabbcb", 0)],
)
def test_stride_leads_each_rank_to_another_node(names: str, stride: int) -> None:
    assert _stride(names) == stride


@pytest.mark.parametrize("variables", [{}, {"CLUSTERDP_NODES": "n1,n3"}])
def test_memory_of_a_job_with_spare_nodes_may_lose_nodes(variables: dict[str, str]) -> None:
    found = MemoryStorage.of_this_node("url", {"CLUSTERDP_MEMORY": "key url", **variables})
    assert found is not None
    assert found.may_lose_nodes == bool(variables)


def storage(node: Node) -> MemoryStorage:
    return MemoryStorage(node.key, node.name)
