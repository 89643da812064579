"""A storage that fails or hangs at any of its calls, on any rank: the save fails on all ranks or commits on all."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from clusterdp.checkpoint import Checkpointer, CheckpointError, Commit, list_checkpoints
from clusterdp.checkpoint.blocks import read_manifest, verify
from clusterdp.checkpoint.layout import token_of_file, token_of_manifest
from clusterdp.storage import LocalStorage
from tests.checkpoint.gang import on_ranks
from tests.checkpoint.training import Counter

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT)
SIZE = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a folder: thousands of fsyncs prove nothing here."""
    path = Path(tempfile.mkdtemp(dir=next(Path("/dev").glob("shm"), None)))
    yield path
    shutil.rmtree(path)


class Faulty(LocalStorage):
    """Every call passes points at which it can fail: before, and where that is something else, in the middle and after
    (the bytes are there, and their fsync has failed)."""

    def __init__(self, path: Path | str):
        super().__init__(path)
        self._lock = threading.Lock()
        self.disarm()

    def arm(self, point: str, after: int, times: int, fail: Callable[[], None]) -> None:
        """When such a point has been passed so often it fails, and so do the points after it, `times` in all."""
        self._point, self._after, self._times, self._fail = point, after, times, fail
        self.hit: list[str] = []

    def disarm(self) -> list[str]:
        """The points that have failed."""
        hit = getattr(self, "hit", [])
        self.arm("none", 0, 0, lambda: None)
        return hit

    def _pass(self, point: str) -> None:
        with self._lock:
            self._after -= point == self._point
            if self._after >= 0 or not self._times or (not self.hit and point != self._point):
                return
            self._times -= 1
            self.hit.append(point)
        self._fail()

    def write(self, name: str, chunks: Iterable[memoryview]) -> None:
        self._pass("write")
        super().write(name, self._cut(chunks))
        self._pass("write: fsync")

    def _cut(self, chunks: Iterable[memoryview]) -> Iterator[memoryview]:
        for chunk in chunks:
            yield chunk[: len(chunk) // 2]
            self._pass("write: in the middle")
            yield chunk[len(chunk) // 2 :]

    def publish(self, name: str, data: bytes) -> None:
        self._pass("publish")
        super().publish(name, data)
        self._pass("publish: fsync of the folder")


def _hook(name: str) -> Any:
    def call(self: Faulty, *args: Any, **options: Any) -> Any:
        self._pass(name)
        return getattr(LocalStorage, name)(self, *args, **options)

    return call


for _name in ("list", "size", "open", "read", "make_folder", "sync_folder", "remove"):
    setattr(Faulty, _name, _hook(_name))

WRITE = ("make_folder", "write", "write: in the middle", "write: fsync", "sync_folder")  # on any rank
COMMIT = ("list", "publish", "publish: fsync of the folder", "remove")  # on rank 0 alone, as is "read"
READ_BACK = ("size", "open", "read")
FOREVER = 1 << 30


def state(value: float) -> dict[str, Counter]:
    shared, own = Counter(), Counter(per_rank=True)
    shared.state = {"tensor": torch.full((50_000,), value), "value": value}
    own.state = {"mine": torch.full((9,), value)}
    return {"shared": shared, "own": own}


def fill(live: dict[str, Counter], value: float) -> None:
    for name, counter in state(value).items():
        live[name].load_state_dict(counter.state)


def try_to_save(checkpointer: Checkpointer, step: int, beside: bool) -> tuple[Commit | None, str, int]:
    """The commit or what was raised, and in which call."""
    calls = 0
    try:
        if not beside:
            return checkpointer.save(step), "", 0
        checkpointer.async_save(step)
        while True:
            calls += 1
            if (commit := checkpointer.step()) is not None:
                return commit, "", calls
    except CheckpointError as error:
        return None, f"{type(error).__name__}: {error}", calls


@dataclass(frozen=True)
class Trial:
    """What happened in one save; equal on all ranks but for `hit`."""

    what: str
    error: str
    calls: int
    hit: list[str]  # the points that failed, on the rank where they did


def a_bad_day(rank: int, size: int, folder: str, seed: int, trials: int) -> list[Trial]:
    """One save after another, each with a fault at a random point of a random rank. Checks the folder after each."""
    logging.disable()
    rng = random.Random(seed)
    storage, live = Faulty(folder), state(0.0)
    checkpointer = Checkpointer(storage, live, keep_last=2)
    fill(live, 1.0)
    checkpointer.save(1)
    done = []
    for step in range(2, 2 + trials):
        point = (WRITE + COMMIT + READ_BACK)[step % 12]
        victim = 0 if point in (*COMMIT, "read") else rng.randrange(size)
        after, times, number = (
            rng.choice([0, 1, 2]) if step > 13 else 0,
            rng.choice([1, 1, 2, 3, FOREVER]),
            rng.choice(ERRORS),
        )
        beside = rng.random() < 0.5
        if point in READ_BACK:  # the save after a restore is read back
            fill(live, 0.0)
            restored = checkpointer.restore()
            assert restored is not None
            assert live["shared"].state["value"] == restored.step == list_checkpoints(folder)[-1].step
            assert live["own"].state["mine"].tolist() == [restored.step] * 9
        fill(live, step)
        before = list_checkpoints(folder)
        dist.barrier()
        if rank == victim:
            storage.arm(point, after, times, lambda number=number: _raise(number))  # type: ignore[misc]
        commit, error, calls = try_to_save(checkpointer, step, beside)
        until_clean()
        hit = storage.disarm()
        what = f"step {step}: {point} on rank {victim}, {os.strerror(number)}, {times} times, beside: {beside}"
        done.append(Trial(what, error, calls, hit))
        dist.barrier()
        if rank == 0:
            check(folder, before, commit, step, could_delete=times == 1, what=what)
        dist.barrier()
        if error:
            assert os.strerror(number) in error, error
            assert f"rank {victim}: " in error, error
            assert re.search(r"(Free some space|Make the folder writable|Look at the file system)", error), error
            assert try_to_save(checkpointer, step, not beside)[1] == "", (
                "the storage is well, and the next save is good"
            )
    return done


def until_clean() -> None:
    """Until this rank has given back what it can."""
    for thread in threading.enumerate():
        if thread.name == "clusterdp-discard":
            thread.join()


def _raise(number: int) -> None:
    raise OSError(number, os.strerror(number))


def check(folder: str, before: list[Any], commit: Commit | None, step: int, could_delete: bool, what: str) -> None:
    """What is committed is whole; and of what failed there is nothing."""
    storage, commits = LocalStorage(folder), list_checkpoints(folder)
    assert commits, what
    for info in commits:
        for name, record in read_manifest(storage, info).files.items():
            verify(storage, f"{info.folder}/{name}", record)
    tokens = {info.token for info in commits}
    if commit is not None:
        assert commits[-1].token == commit.token, what
    elif could_delete:
        assert tokens == {info.token for info in before}, f"{what}: the old ones are not as they were"
    if could_delete:
        names = {path.name for path in Path(folder).glob(f"step_{step:08d}/*")}
        of_files = {token_of_file(name) or token_of_manifest(name) for name in names}
        assert of_files <= tokens, f"{what}: left behind: {of_files - tokens}"


def bad_days(folder: Path, seeds: Iterable[int], trials: int) -> set[str]:
    """The points that have failed a save, and with a plus those that have failed and not the save."""
    seen: set[str] = set()
    for seed in seeds:
        answers = on_ranks(SIZE, a_bad_day, str(folder / str(seed)), seed, trials)
        for ranks in zip(*answers, strict=True):
            same = {(trial.what, trial.error, trial.calls) for trial in ranks}
            assert len(same) == 1, f"seed {seed}: the ranks do not agree: {same}"
            seen |= {trial.hit[0] + ("" if trial.error else "+") for trial in ranks if trial.hit}
    return seen


def judge(seen: set[str]) -> None:
    in_passing = {"list+", "read+", "remove+", "sync_folder+"}  # while retention looks and deletes: it is logged
    assert seen - in_passing == {*WRITE, *READ_BACK, *COMMIT} - {"remove"}, sorted(seen)
    assert "remove+" in seen


def test_any_error_of_the_storage_on_any_rank_fails_the_save_on_all_and_leaves_nothing(folder: Path) -> None:
    judge(bad_days(folder, [1], 36))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_bad_days(folder: Path) -> None:
    judge(bad_days(folder, range(100, 120), 100))


def hang(rank: int, size: int, folder: str, seed: int) -> list[int]:
    """Saves whose storage hangs on one rank, for as long as the ranks have not trained twenty steps."""
    rng = random.Random(seed)
    storage = Faulty(folder)
    checkpointer = Checkpointer(storage, state(1.0), keep_last=1)
    checkpointer.save(0)
    calls = []
    for step, point in enumerate(WRITE + COMMIT, 1):
        victim = 0 if point in COMMIT else rng.randrange(size)
        hangs, released = threading.Event(), threading.Event()
        if rank == victim:
            storage.arm(point, 0, 1, partial(_wait, hangs, released))
        assert checkpointer.async_save(step)
        while True:
            assert checkpointer.step() is None
            told = torch.tensor(int(hangs.is_set()))
            dist.all_reduce(told)
            if told:
                break
        assert [checkpointer.step() for _ in range(20)] == [None] * 20, "the training goes on"
        assert not checkpointer.async_save(step + 100)
        assert checkpointer.skipped == 1
        released.set()
        called = 1
        while checkpointer.step() is None:
            called += 1
        calls.append(called)
        assert storage.disarm() == [point] * (rank == victim)
        dist.barrier()
        assert [info.step for info in list_checkpoints(folder)] == [step]
        dist.barrier()
    return calls


def _wait(hangs: threading.Event, released: threading.Event) -> None:
    hangs.set()
    assert released.wait(100)


def test_a_storage_that_hangs_on_one_rank_holds_up_no_training_and_commits_when_it_is_back(folder: Path) -> None:
    calls = on_ranks(SIZE, hang, str(folder), 1)
    assert calls[0] == calls[1] == calls[2], "all hear of a commit in the same call"


def test_a_step_that_is_saved_again_while_its_failed_save_is_cleaned_up_finds_its_folder(folder: Path) -> None:
    cleaning, gone = threading.Event(), threading.Event()

    class Slow(Faulty):
        def remove_folder(self, name: str) -> None:
            assert cleaning.wait(60)
            super().remove_folder(name)
            gone.set()

        def write(self, name: str, chunks: Iterable[memoryview]) -> None:
            if not self._times and not gone.is_set():  # the second save has made sure of its folder
                cleaning.set()
                assert gone.wait(60)
            super().write(name, chunks)

    storage = Slow(folder)
    checkpointer = Checkpointer(storage, state(1.0))
    storage.arm("write: in the middle", 0, 1, partial(_raise, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 7, beside=True)[1]
    checkpointer.async_save(7)
    assert checkpointer.wait() is not None


def test_a_manifest_that_cannot_be_taken_back_is_a_checkpoint_and_keeps_its_files(folder: Path) -> None:
    storage, live = Faulty(folder), state(1.0)
    checkpointer = Checkpointer(storage, live)
    checkpointer.save(1)
    fill(live, 2.0)
    storage.arm("publish: fsync of the folder", 0, 2, partial(_raise, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 2, beside=False)[1]
    assert storage.disarm() == ["publish: fsync of the folder", "remove"]
    restored = Checkpointer(folder, live).restore()
    assert restored is not None
    assert (restored.step, restored.skipped) == (2, ()), "it is there, and so it must be whole"


@pytest.mark.parametrize("fails", ["write", "publish"])
def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(folder: Path, fails: str) -> None:
    class Stuck(Faulty):
        def remove(self, name: str) -> None:
            if "-of-0001" in name:
                raise OSError(errno.EBUSY, "Device or resource busy")
            super().remove(name)

    storage = Stuck(folder)
    checkpointer = Checkpointer(storage, state(1.0))
    storage.arm(fails, 2 if fails == "write" else 0, 1, partial(_raise, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 2, beside=False)[1]
    (left,) = (folder / "step_00000002").iterdir()
    assert "-of-0001" in left.name


def test_the_save_after_a_restore_is_read_back_from_the_disk_and_not_from_a_cache(folder: Path) -> None:
    class Noted(LocalStorage):
        forgotten: ClassVar[list[str]] = []

        def forget(self, name: str) -> None:
            self.forgotten.append(name)

        def publish(self, name: str, data: bytes) -> None:
            super().publish(name, data[:-1] if "00000003" in name else data)

    Checkpointer(folder, state(1.0)).save(1)
    checkpointer = Checkpointer(Noted(folder), state(1.0))
    checkpointer.restore()
    Noted.forgotten.clear()
    checkpointer.save(2)
    step = folder / "step_00000002"
    assert {f"{step.name}/{path.name}" for path in step.iterdir()} == {*Noted.forgotten}
    checkpointer.restore()
    with pytest.raises(CheckpointError, match="MANIFEST"):
        checkpointer.save(3)
    assert [info.step for info in list_checkpoints(folder)] == [1, 2]
    assert not (folder / "step_00000003").exists()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A real file system of 2 MiB: what the kernel does when it is full or read-only is not what a test makes up."""
    folder.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], stderr=-3).returncode:
        pytest.skip("to mount a small disk takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def fill_up(rank: int, size: int, folder: str) -> list[str]:
    """There is room for the half of a save, for all but its end, and so on: 600 KB that three ranks write."""
    live = state(0.0)
    checkpointer = Checkpointer(f"{folder}/checkpoints", live, keep_last=1)
    checkpointer.save(1)
    live["shared"].state["more"] = torch.zeros(100_000)
    ballast, errors = Path(folder, "ballast"), []
    for step, room in enumerate((0, 4, 80, 300, 590), 2):
        dist.barrier()
        if rank == 0:
            ballast.unlink(missing_ok=True)
            free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_bsize
            ballast.write_bytes(bytes(max(0, free - room * 1024)))
        dist.barrier()
        free = os.statvfs(folder).f_bfree
        dist.barrier()
        commit, error, _ = try_to_save(checkpointer, step, beside=step % 2 == 0)
        assert commit is None
        until_clean()
        dist.barrier()
        assert os.statvfs(folder).f_bfree == free, f"{room} KiB: space was not given back"
        assert [info.step for info in list_checkpoints(f"{folder}/checkpoints")] == [1]
        errors.append(error)
    dist.barrier()
    if rank == 0:
        ballast.unlink()
    dist.barrier()
    checkpointer.save(9)
    return errors


def test_a_full_disk_fails_the_save_on_all_ranks_and_gets_its_space_back(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        answers = on_ranks(SIZE, fill_up, str(disk))
        assert answers[0] == answers[1] == answers[2]
        assert all("No space left on device. Free some space there" in error for error in answers[0])
        assert [info.step for info in list_checkpoints(disk / "checkpoints")] == [9]


def lose_the_right_to_write(rank: int, size: int, folder: str) -> list[str]:
    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", folder], check=True)

    def between(change: Callable[[], None], on: int) -> None:
        dist.barrier()
        if rank == on:
            change()
        dist.barrier()

    checkpointer = Checkpointer(f"{folder}/checkpoints", state(1.0))
    checkpointer.save(1)
    errors = []
    for beside in (False, True):
        between(lambda: remount("ro"), on=0)
        errors.append(try_to_save(checkpointer, 2, beside)[1])
        until_clean()
        between(lambda: remount("rw"), on=0)
        between(lambda: os.seteuid(65534), on=1)  # the kernel lets root write anywhere
        errors.append(try_to_save(checkpointer, 2, beside)[1])
        until_clean()
        between(lambda: os.seteuid(0), on=1)
        assert [path.name for path in Path(folder, "checkpoints").iterdir()] == ["step_00000001"]
    checkpointer.save(3)
    return errors


def test_a_disk_that_becomes_read_only_and_a_user_who_may_not_write(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        answers = on_ranks(SIZE, lose_the_right_to_write, str(disk))
        assert answers[0] == answers[1] == answers[2]
        for read_only, denied in (answers[0][:2], answers[0][2:]):
            assert "Read-only file system. Make the folder writable" in read_only
            assert "rank 1: " in denied
            assert "Permission denied. Make the folder writable for this user on every node" in denied
        assert [info.step for info in list_checkpoints(disk / "checkpoints")] == [1, 3]
