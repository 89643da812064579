"""One process without a process group: what users of the Checkpointer alone rely on."""

from __future__ import annotations

import logging
import os
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch.optim import lr_scheduler

from clusterdp.checkpoint import Checkpointer, CheckpointError, ClaimLost, Commit, StateError, list_checkpoints
from clusterdp.checkpoint.format.layout import slice_name
from clusterdp.checkpoint.format.manifest import decode
from clusterdp.checkpoint.state.tree import as_bytes
from clusterdp.storage import LocalStorage
from tests.checkpoint.training import Counter, Training, digest


@pytest.fixture(autouse=True)
def leave_the_random_numbers_alone() -> Iterator[None]:
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    numpy.random.set_state(before[2])


def numbers(value: float = 0.0, **more: Any) -> Counter:
    counter = Counter()
    counter.state = {"value": value, "tensor": torch.full((100,), value), **more}
    return counter


def steps(url: object) -> list[int]:
    return [info.step for info in list_checkpoints(str(url))]


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "adam"])
@pytest.mark.parametrize("at", [1, 4])
def test_resumed_training_ends_bit_identical_to_uninterrupted_training(tmp_path: Path, adam: bool, at: int) -> None:
    training = Training(seed=1, adam=adam)
    checkpointer = Checkpointer(tmp_path, training.state)
    for step in range(1, 9):
        training.step()
        if step == at:
            checkpointer.save(step)
    expected = training.digest()

    training = Training(seed=2, adam=adam)
    checkpointer = Checkpointer(tmp_path, training.state)
    restored = checkpointer.restore()
    assert restored is not None
    next(iter(torch.utils.data.DataLoader(list(range(3)))))  # draws from torch's random numbers
    checkpointer.restore_rng()
    for _ in range(restored.step, 8):
        training.step()
    assert training.digest() == expected


SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
    lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]),
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_lr_scheduler_continues_with_identical_rates_after_restore(tmp_path: Path, make: Callable[[Any], Any]) -> None:
    def run(start: int, stop: int, parts: dict[str, Any]) -> list[float]:
        rates = []
        for _ in range(start, stop):
            parts["optimizer"].step()
            plateau = isinstance(parts["scheduler"], lr_scheduler.ReduceLROnPlateau)
            parts["scheduler"].step(*([1.0] if plateau else []))
            rates.append(parts["optimizer"].param_groups[0]["lr"])
        return rates

    def build() -> dict[str, Any]:
        weight = torch.nn.Parameter(torch.ones(2))
        weight.grad = torch.ones(2)
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "scheduler": make(optimizer)}

    first = build()
    run(0, 3, first)
    Checkpointer(tmp_path, first).save(3)
    second = build()
    Checkpointer(tmp_path, second).restore()
    assert run(3, 12, second) == run(3, 12, first)


def test_restore_of_a_missing_folder_returns_none_and_creates_no_folder(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "none", {"x": numbers()})
    before = torch.get_rng_state()
    assert checkpointer.restore() is None
    checkpointer.restore_rng()
    assert torch.equal(torch.get_rng_state(), before)
    assert not (tmp_path / "none").exists()


def test_checkpoint_restores_meta_values_but_save_refuses_objects_and_invalid_steps(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"x": numbers()}, attempt="77.1")
    meta = {"epoch": 3, "loss": float("nan"), 5: [1, (2, None)]}
    commit = checkpointer.save(1, meta)
    restored = checkpointer.restore()
    assert restored is not None
    assert repr(restored.meta) == repr(meta)
    (info,) = list_checkpoints(tmp_path)
    assert (info.attempt, info.token, info.bytes) == ("77.1", commit.token, commit.bytes)
    files = tmp_path.rglob(f"{commit.token}*")
    assert sum(path.stat().st_size for path in files) == commit.bytes
    with pytest.raises(StateError, match="meta/t: meta is for small values"):
        checkpointer.save(2, {"t": torch.ones(1)})
    with pytest.raises(StateError, match="meta/t: a object cannot be saved"):
        checkpointer.save(2, {"t": object()})
    for step in (-1, 1.5, True, "3"):
        with pytest.raises(StateError, match="step: "):
            checkpointer.save(step)  # type: ignore[arg-type]
    assert steps(tmp_path) == [1]


def test_safetensors_library_reads_checkpoint_files_with_identical_tensors(tmp_path: Path) -> None:
    model = torch.nn.Linear(30, 20)
    commit = Checkpointer(tmp_path, {"model": model}).save(5)
    folder = tmp_path / "step_00000005"
    name = f"step_00000005/MANIFEST.{commit.token}.json"
    manifest = decode((tmp_path / name).read_bytes(), name)
    flat = load_file(folder / slice_name(commit.token, 0, 1))["slice"]
    assert flat.numel() == manifest.layout.total
    for entry in manifest.layout.entries:
        live = model.get_parameter(entry.name.removeprefix("model/"))
        assert torch.equal(flat[entry.offset : entry.end], as_bytes(live.detach()))
    for path in folder.glob("*.local.safetensors"):
        assert load_file(path)["slice"].numel() > 5000, "torch's random numbers are in it"


def test_all_files_and_folders_are_fsynced_before_the_manifest_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[int | str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(fd: int) -> None:
        fsync(fd)
        events.append(os.fstat(fd).st_ino)

    def noted_link(source: Path, target: Path) -> None:
        link(source, target)
        events.append("link")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    root = tmp_path / "new"
    Checkpointer(root, {"x": numbers()}).save(1)
    monkeypatch.undo()
    folder = root / "step_00000001"
    (manifest,) = folder.glob("MANIFEST*")
    others = set(folder.iterdir()) - {manifest}
    linked = events.index("link")
    before, after = events[:linked], events[linked + 1 :]
    assert before[-1] == manifest.stat().st_ino, "it is whole on disk before it has its name"
    last_file = max(before.index(path.stat().st_ino) for path in others)
    assert folder.stat().st_ino in before[last_file:], "the files' names are on disk, too"
    assert root.stat().st_ino in before, "and the name of their folder"
    assert tmp_path.stat().st_ino in before
    assert after == [folder.stat().st_ino], "and then the manifest's name"


def test_published_manifest_is_removed_if_publish_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, {"x": numbers(1)})
    checkpointer.save(1)
    published = LocalStorage.publish

    def doubt(self: LocalStorage, name: str, data: bytes) -> None:
        published(self, name, data)
        raise OSError(5, "the folder could not be synced")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "publish", doubt)
        with pytest.raises(CheckpointError, match="could not be synced"):
            checkpointer.save(2)
    assert steps(tmp_path) == [1], "all were told that it failed, and so it must have"


def test_restore_takes_the_last_committed_checkpoint_not_the_highest_step(tmp_path: Path) -> None:
    for step in (10, 30, 20):
        Checkpointer(tmp_path, {"x": numbers(step)}).save(step)
    x = numbers()
    restored = Checkpointer(tmp_path, {"x": x}).restore()
    assert restored is not None
    assert (restored.step, x.state["value"]) == (20, 20)


def test_restore_takes_the_later_commit_of_a_twice_saved_step(tmp_path: Path) -> None:
    first = Checkpointer(tmp_path, {"x": numbers(1)}).save(10)
    second = Checkpointer(tmp_path, {"x": numbers(2)}).save(10)
    assert first.token != second.token
    x = numbers()
    restored = Checkpointer(tmp_path, {"x": x}).restore(10)
    assert restored is not None
    assert (restored.token, x.state["value"]) == (second.token, 2)


def test_restore_with_retire_later_makes_an_older_step_the_newest(tmp_path: Path) -> None:
    writer = Checkpointer(tmp_path, {"x": (x := numbers())})
    for step in (1, 2, 3):
        x.state["value"] = step
        writer.save(step)
    assert Checkpointer(tmp_path, {"x": x}).restore(1, retire_later=False)
    looked = Checkpointer(tmp_path, {"x": x}).restore()
    assert looked is not None
    assert looked.step == 3, "to look at an old step changes nothing"

    assert Checkpointer(tmp_path, {"x": x}).restore(1, retire_later=True)
    again = Checkpointer(tmp_path, {"x": x}, keep_last=1)
    restored = again.restore(retire_later=True)
    assert restored is not None
    assert (restored.step, x.state["value"], steps(tmp_path)) == (1, 1, [1, 2, 3, 1])
    # Its bytes are those of the first commit, which must outlive it.
    again.save(4)
    again.save(5)
    assert steps(tmp_path) == [5]
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000005"]


def test_checkpoint_files_are_kept_while_another_commit_uses_them(tmp_path: Path) -> None:
    x = numbers(7)
    Checkpointer(tmp_path, {"x": x}).save(1)
    Checkpointer(tmp_path, {"x": numbers(8)}).save(2)
    checkpointer = Checkpointer(tmp_path, {"x": x}, keep_last=2)
    checkpointer.restore(1, retire_later=True)
    checkpointer.save(3)  # the first commit goes, the second of the same bytes stays
    assert steps(tmp_path) == [1, 3]
    x.state = {}
    Checkpointer(tmp_path, {"x": x}).restore(1)
    assert x.state["value"] == 7


def test_missing_step_is_an_error_with_the_existing_steps(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"x": numbers()}).save(10)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 11\. Those that exist: 10"):
        Checkpointer(tmp_path, {"x": numbers()}).restore(11)


def test_retention_keeps_the_newest_checkpoints_and_every_multiple_of_keep_every(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, {"x": numbers()}, keep_last=2, keep_every=3)
    for step in range(10, 18):
        checkpointer.save(step)
    assert steps(tmp_path) == [12, 15, 16, 17]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step_000000{n}" for n in (12, 15, 16, 17)]


def test_restored_checkpoint_is_kept_until_a_new_one_passes_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpointer(tmp_path, {"x": numbers(1)}).save(1)
    Checkpointer(tmp_path, {"x": numbers(2)}).save(2)
    checkpointer = Checkpointer(tmp_path, {"x": numbers()}, keep_last=1)
    checkpointer.restore(1)
    written = LocalStorage.write

    def rot(self: LocalStorage, name: str, chunks: Any) -> None:
        written(self, name, chunks)
        if name.endswith("-of-0001.safetensors"):
            with self.path(name).open("r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"rot")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "write", rot)
        with pytest.raises(CheckpointError, match="checksum"):
            checkpointer.save(3)
    assert steps(tmp_path) == [1, 2], "what does not read back is not a checkpoint, and costs none"
    checkpointer.save(4)
    assert steps(tmp_path) == [4]


def test_lost_run_claim_stops_commits_and_deletions(tmp_path: Path) -> None:
    claim = [True]
    checkpointer = Checkpointer(tmp_path, {"x": numbers()}, keep_last=1, may_commit=lambda: claim[0])
    checkpointer.save(1)
    claim[0] = False
    with pytest.raises(ClaimLost, match="commits nothing"):
        checkpointer.save(2)
    assert steps(tmp_path) == [1]
    assert not (tmp_path / "step_00000002").exists()
    answers = iter([True, False])
    late = Checkpointer(tmp_path, {"x": numbers()}, keep_last=1, may_commit=lambda: next(answers))
    with pytest.raises(ClaimLost, match="deletes nothing"):
        late.save(3)
    assert steps(tmp_path) == [1, 3], "it was committed under the claim, and deletes nothing without it"


def test_commit_hook_runs_after_the_commit_and_its_error_is_raised(tmp_path: Path) -> None:
    seen: list[tuple[Commit, list[int]]] = []
    checkpointer = Checkpointer(
        tmp_path, {"x": numbers()}, on_commit=lambda commit: seen.append((commit, steps(tmp_path)))
    )
    commit = checkpointer.save(1)
    assert seen == [(commit, [1])]

    def fail(commit: Commit) -> None:
        raise RuntimeError("disk full of hooks")

    with pytest.raises(CheckpointError, match="disk full of hooks"):
        Checkpointer(tmp_path, {"x": numbers()}, on_commit=fail).save(2)
    assert steps(tmp_path) == [1, 2]


def test_save_deletes_files_of_interrupted_saves_unless_recent_or_foreign(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"x": numbers()}).save(1)
    old, young, notes, used = (
        tmp_path / "step_00000002" / "aaaaaaaaaaaa-0001-r0000-of-0001.safetensors",
        tmp_path / "step_00000003" / "bbbbbbbbbbbb-0001-r0000.json",
        tmp_path / "step_00000004" / "notes.txt",
        tmp_path / "step_00000001" / "cccccccccccc-0009-r0000.local.safetensors",
    )
    for path in (old, young, notes, used):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
        os.utime(path, (1e9, 1e9))
    os.utime(young)
    Checkpointer(tmp_path, {"x": numbers()}).save(5)
    assert not old.parent.exists()
    assert not used.exists()
    assert young.exists()
    assert notes.exists()
    assert steps(tmp_path) == [1, 5]


def test_checkpointer_refuses_objects_without_state_and_invalid_keep_last(tmp_path: Path) -> None:
    for thing in (3, torch.nn.Linear, None):
        with pytest.raises(StateError, match="x: "):
            Checkpointer(tmp_path, {"x": thing})
    with pytest.raises(CheckpointError, match="keep_last: 0"):
        Checkpointer(tmp_path, {}, keep_last=0)


def linear(size: int = 3, **more: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.ModuleDict({"linear": torch.nn.Linear(size, 2), **more})


@pytest.mark.parametrize(
    ("saved", "live", "message"),
    [
        ({"x": numbers()}, {"x": numbers(), "y": numbers()}, "state: .* not in the checkpoint: y"),
        ({"x": numbers(), "y": numbers()}, {"x": numbers()}, "state: .* only in the checkpoint: y"),
        ({"m": linear()}, {"m": linear(bn=torch.nn.BatchNorm1d(2))}, "m: .* not in the checkpoint: bn.bias"),
        ({"m": linear(more=torch.nn.Linear(1, 1))}, {"m": linear()}, "m: .* only in the checkpoint: more.bias"),
        ({"m": linear()}, {"m": linear(4)}, r"m: .* linear.weight \(\(2, 3\) in the checkpoint, \(2, 4\) here\)"),
        ({"s": torch.amp.GradScaler("cpu")}, {"s": torch.amp.GradScaler("cpu", enabled=False)}, "s: AMP is switched"),
        ({"s": torch.amp.GradScaler("cpu", enabled=False)}, {"s": torch.amp.GradScaler("cpu")}, "s: GradScaler"),
        (
            {"o": torch.optim.SGD(linear().parameters())},
            {"o": torch.optim.SGD(linear(more=linear()).parameters())},
            "o: SGD.load_state_dict.. failed",
        ),
    ],
)
def test_restore_fails_on_incompatible_state_instead_of_using_an_older_checkpoint(
    tmp_path: Path, saved: dict[str, Any], live: dict[str, Any], message: str
) -> None:
    Checkpointer(tmp_path, live).save(1)
    Checkpointer(tmp_path, saved).save(2)
    with pytest.raises(StateError, match=message):
        Checkpointer(tmp_path, live).restore()


def test_optimizer_moment_with_a_dtype_unlike_its_parameter_is_restored_unchanged(tmp_path: Path) -> None:
    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(50, dtype=torch.bfloat16))], momentum=0.9)

    first = build()
    moment = torch.randn(50)
    first.state[first.param_groups[0]["params"][0]]["momentum_buffer"] = moment
    Checkpointer(tmp_path, {"o": first}).save(1)
    second = build()
    Checkpointer(tmp_path, {"o": second}).restore()
    loaded = second.state[second.param_groups[0]["params"][0]]["momentum_buffer"]
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, moment)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nested_optimizer_state_keeps_its_values_types_and_shared_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    """As Shampoo and SOAP have it: preconditioners in a list, and counters beside them."""

    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(50, dtype=dtype))], momentum=0.9)

    index, factor = torch.tensor([1073741825]), torch.randn(5)
    deep = OrderedDict({"a": (torch.tensor([True]), [torch.randn(2, dtype=torch.float64)])})
    state = {"GG": [factor, factor], "idx": [index], "deep": deep, "kind": "soap", "n": 3, "step": torch.tensor(1.0)}
    first = build()
    first.state[first.param_groups[0]["params"][0]].update(state)
    Checkpointer(tmp_path, {"o": first}).save(1)
    second = build()
    Checkpointer(tmp_path, {"o": second}).restore()
    loaded = second.state[second.param_groups[0]["params"][0]]
    assert digest(loaded) == digest(state)
    assert loaded["GG"][0] is loaded["GG"][1]
    assert type(loaded["deep"]) is OrderedDict


def test_restored_tensor_does_not_keep_the_whole_checkpoint_buffer_in_memory(tmp_path: Path) -> None:
    big, small = numbers(), numbers()
    big.state["tensor"] = torch.zeros(1_000_000)
    Checkpointer(tmp_path, {"big": big, "small": small}).save(1)
    Checkpointer(tmp_path, {"big": big, "small": small}).restore()
    assert small.state["tensor"].untyped_storage().nbytes() == 400


def test_dataparallel_checkpoint_is_restored_into_an_unwrapped_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    wrapped = torch.nn.DataParallel(model)
    Checkpointer(tmp_path, {"model": wrapped}).save(1)
    other = torch.nn.Linear(3, 2)
    Checkpointer(tmp_path, {"model": other}).restore()
    assert digest(other.state_dict()) == digest(model.state_dict())


def test_restore_reports_a_damaged_checkpoint_and_takes_the_previous_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x = numbers(1)
    Checkpointer(tmp_path, {"x": x}).save(1)
    x.state["value"] = 2
    commit = Checkpointer(tmp_path, {"x": x}).save(2)
    path = tmp_path / "step_00000002" / slice_name(commit.token, 0, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    checkpointer = Checkpointer(tmp_path, {"x": x}, keep_last=1)
    with caplog.at_level(logging.WARNING):
        restored = checkpointer.restore()
    assert restored is not None
    assert (restored.step, x.state["value"]) == (1, 1)
    assert path.name in restored.skipped[0]
    assert path.name in caplog.text
    checkpointer.save(3)
    assert steps(tmp_path) == [3], "a bad one counts for nothing, and goes with those that are older than it"


def test_restore_fails_with_every_reason_if_no_checkpoint_is_good(tmp_path: Path) -> None:
    for step in (1, 2):
        Checkpointer(tmp_path, {"x": numbers()}).save(step)
    for path in tmp_path.rglob("*-of-0001.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"none is good: step_00000002/.*missing.*; step_00000001/.*missing"):
        Checkpointer(tmp_path, {"x": numbers()}).restore()
    for path in tmp_path.rglob("MANIFEST*"):
        path.write_text("{}")
    with pytest.raises(CheckpointError, match="none is good"):
        Checkpointer(tmp_path, {"x": numbers()}).restore()


def test_checkpoint_skipped_after_a_read_error_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        Checkpointer(tmp_path, {"x": numbers(step)}).save(step)
    opened = LocalStorage.open

    def fail(self: LocalStorage, name: str, *span: int | None) -> Any:
        if name.startswith("step_00000002/") and name.endswith("safetensors"):
            raise OSError(5, "Input/output error", name)
        return opened(self, name, *span)

    checkpointer = Checkpointer(tmp_path, {"x": numbers()}, keep_last=1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "open", fail)
        restored = checkpointer.restore()
    assert restored is not None
    assert restored.step == 1
    assert "Input/output error" in restored.skipped[0]
    checkpointer.save(3)
    assert steps(tmp_path) == [2, 3]


@pytest.mark.parametrize("method", ["open", "read", "size"])
def test_restore_retries_a_checkpoint_after_temporary_read_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for step in (1, 2):
        Checkpointer(tmp_path, {"x": numbers(step)}).save(step)
    whole, failures = getattr(LocalStorage, method), [1, 1]

    def fail(self: LocalStorage, name: str, *span: int | None) -> Any:
        if name.startswith("step_00000002/") and failures:
            failures.pop()
            raise OSError(5, "Input/output error", name)
        return whole(self, name, *span)

    monkeypatch.setattr(LocalStorage, method, fail)
    restored = Checkpointer(tmp_path, {"x": numbers()}).restore()
    assert restored is not None
    assert (restored.step, restored.skipped, failures) == (2, (), [])


def test_restore_rereads_a_file_after_one_corrupted_read_or_wrong_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpointer(tmp_path, {"x": numbers(1)}).save(1)
    opened, sized = LocalStorage.open, LocalStorage.size
    lies = {"open": 1, "size": 1}

    class Liar:
        def __init__(self, inner: Any):
            self.inner = inner

        def __enter__(self) -> Liar:
            self.file = self.inner.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)

        def read_at(self, start: int, into: memoryview) -> int:
            count: int = self.file.read_at(start, into)
            into[count // 2] ^= 1
            return count

    def lie(self: LocalStorage, name: str, *span: int | None) -> Any:
        if name.endswith("-of-0001.safetensors") and lies["open"]:
            lies["open"] -= 1
            return Liar(opened(self, name, *span))
        return opened(self, name, *span)

    def short(self: LocalStorage, name: str) -> int:
        if name.endswith("-of-0001.safetensors") and lies["size"]:
            lies["size"] -= 1
            return 17
        return sized(self, name)

    monkeypatch.setattr(LocalStorage, "open", lie)
    monkeypatch.setattr(LocalStorage, "size", short)
    restored = Checkpointer(tmp_path, {"x": (x := numbers())}).restore()
    assert lies == {"open": 0, "size": 0}
    assert restored is not None
    assert (restored.skipped, x.state["value"]) == ((), 1)


def test_full_disk_fails_the_save_frees_its_space_and_keeps_old_checkpoints(tmp_path: Path) -> None:
    mounted = os.geteuid() == 0 and not os.system(f"mount -t tmpfs -o size=1m tmpfs {tmp_path} 2>/dev/null")
    if not mounted:
        pytest.skip("to mount a small disk takes root")
    try:
        x = numbers(1)
        checkpointer = Checkpointer(tmp_path / "checkpoints", {"x": x})
        checkpointer.save(1)
        free = os.statvfs(tmp_path).f_bfree
        x.state["tensor"] = torch.zeros(300_000)
        with pytest.raises(CheckpointError, match=r"No space left on device\. Free some space"):
            checkpointer.save(2)
        assert os.statvfs(tmp_path).f_bfree == free
        restored = checkpointer.restore()
        assert restored is not None
        assert (restored.step, x.state["tensor"].numel()) == (1, 100)
        checkpointer.save(3)
        assert steps(tmp_path / "checkpoints") == [1, 3]
    finally:
        os.system(f"umount {tmp_path}")


def test_checkpointer_saves_and_restores_in_an_object_store() -> None:
    url = "memory://checkpointer/run"
    x = numbers(1)
    checkpointer = Checkpointer(url, {"x": x}, keep_last=2)
    assert checkpointer.restore() is None
    for step in (1, 2, 3):
        x.state["value"] = step
        checkpointer.save(step)
    x.state = {}
    restored = Checkpointer(url, {"x": x}).restore()
    assert restored is not None
    assert (restored.step, x.state["value"], steps(url)) == (3, 3, [2, 3])
    fsspec.filesystem("memory").rm("/checkpointer", recursive=True)
