"""A storage that fails or hangs at any of its calls, on any rank: the save fails on all ranks or commits on all."""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist

from clusterdp.checkpoint import Checkpointer, CheckpointError, Commit, list_checkpoints
from clusterdp.checkpoint.format.layout import token_of_file, token_of_manifest
from clusterdp.checkpoint.format.verified_reads import read_manifest, verify
from clusterdp.storage import LocalStorage
from tests.checkpoint.faulty import Faulty, fail_with, fill, state, try_to_save, until_clean
from tests.checkpoint.gang import on_ranks

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT)
SIZE = 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a folder: thousands of fsyncs prove nothing here."""
    path = Path(tempfile.mkdtemp(dir=next(Path("/dev").glob("shm"), None)))
    yield path
    shutil.rmtree(path)


WRITE = ("make_folder", "write", "write: in the middle", "write: fsync", "sync_folder")  # on any rank
LAST = ("write: fsync", "sync_folder")  # on the rank of the node that ends last, whichever it is
COMMIT = ("list", "publish", "publish: fsync of the folder", "remove")  # on rank 0 alone, as is "read"
READ_BACK = ("size", "open", "read")
FOREVER = 1 << 30


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
        if rank == victim or point in LAST:
            storage.arm(point, 0 if point in LAST else after, times, lambda number=number: fail_with(number))  # type: ignore[misc]
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
            assert ("rank " if point in LAST else f"rank {victim}: ") in error, error
            assert re.search(r"(Free some space|Make the folder writable|Look at the file system)", error), error
            assert try_to_save(checkpointer, step, not beside)[1] == "", (
                "the storage is well, and the next save is good"
            )
    return done


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


def test_storage_error_on_any_rank_fails_the_save_on_all_without_leftovers(folder: Path) -> None:
    judge(bad_days(folder, [1], 36))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_long_series_of_storage_errors_fails_saves_on_all_ranks_without_leftovers(folder: Path) -> None:
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
        if rank == victim or point in LAST:
            storage.arm(point, 0, 1, partial(_wait, hangs, released))
        assert checkpointer.async_save(step)
        while True:
            assert checkpointer.step() is None
            told = torch.tensor(int(hangs.is_set()))
            dist.all_reduce(told, dist.ReduceOp.MAX)
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
        assert storage.disarm() == [point] * (hangs.is_set() if point in LAST else rank == victim)
        dist.barrier()
        assert [info.step for info in list_checkpoints(folder)] == [step]
        dist.barrier()
    return calls


def _wait(hangs: threading.Event, released: threading.Event) -> None:
    hangs.set()
    assert released.wait(100)


def test_hanging_storage_on_one_rank_delays_the_commit_but_not_training(folder: Path) -> None:
    calls = on_ranks(SIZE, hang, str(folder), 1)
    assert calls[0] == calls[1] == calls[2], "all hear of a commit in the same call"


def test_step_saved_again_during_cleanup_of_its_failed_save_is_committed(folder: Path) -> None:
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
    storage.arm("write: in the middle", 0, 1, partial(fail_with, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 7, beside=True)[1]
    checkpointer.async_save(7)
    assert checkpointer.wait() is not None


def test_unremovable_manifest_of_a_failed_save_is_a_complete_checkpoint(folder: Path) -> None:
    storage, live = Faulty(folder), state(1.0)
    checkpointer = Checkpointer(storage, live)
    checkpointer.save(1)
    fill(live, 2.0)
    storage.arm("publish: fsync of the folder", 0, 2, partial(fail_with, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 2, beside=False)[1]
    assert storage.disarm() == ["publish: fsync of the folder", "remove"]
    restored = Checkpointer(folder, live).restore()
    assert restored is not None
    assert (restored.step, restored.skipped) == (2, ()), "it is there, and so it must be whole"


@pytest.mark.parametrize("fails", ["write", "publish"])
def test_undeletable_file_of_a_failed_save_does_not_stop_the_cleanup(folder: Path, fails: str) -> None:
    class Stuck(Faulty):
        def remove(self, name: str) -> None:
            if "-of-0001" in name:
                raise OSError(errno.EBUSY, "Device or resource busy")
            super().remove(name)

    storage = Stuck(folder)
    checkpointer = Checkpointer(storage, state(1.0))
    storage.arm(fails, 2 if fails == "write" else 0, 1, partial(fail_with, errno.EIO))
    assert "Input/output error" in try_to_save(checkpointer, 2, beside=False)[1]
    (left,) = (folder / "step_00000002").iterdir()
    assert "-of-0001" in left.name


def test_save_after_a_restore_is_verified_from_disk_not_from_cache(folder: Path) -> None:
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
