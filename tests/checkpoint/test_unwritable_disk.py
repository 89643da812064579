"""A disk that is full, read-only, or not for this user: real ones, on one rank or on all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from tests.checkpoint.faulty import state, try_to_save, until_clean
from tests.checkpoint.gang import on_ranks
from tests.small_disk import small_disk

SIZE = 3


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


def test_full_disk_fails_the_save_on_all_ranks_and_frees_its_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, mb=2):
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


def test_read_only_disk_or_missing_permission_fails_the_save_on_all_ranks(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, mb=2):
        answers = on_ranks(SIZE, lose_the_right_to_write, str(disk))
        assert answers[0] == answers[1] == answers[2]
        for read_only, denied in (answers[0][:2], answers[0][2:]):
            assert "Read-only file system. Make the folder writable" in read_only
            assert "rank 1: " in denied
            assert "Permission denied. Make the folder writable for this user on every node" in denied
        assert [info.step for info in list_checkpoints(disk / "checkpoints")] == [1, 3]
