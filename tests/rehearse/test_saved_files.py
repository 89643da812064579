"""The files of a program's saves on disk, told apart by their times and inodes."""

from __future__ import annotations

import os
from pathlib import Path

from clusterdp.rehearse.drills.saves import by_save, size_of


def _made(path: Path, at: int = 100) -> Path:
    path.write_bytes(b"state")
    os.utime(path, (at, at))
    return path


def test_shards_of_all_ranks_form_one_checkpoint(tmp_path: Path) -> None:
    shards = [_made(tmp_path / "rank0.pt", 100), _made(tmp_path / "rank1.pt", 101)]
    assert by_save(shards, 5) == [shards]


def test_saves_are_ordered_by_time_not_by_name(tmp_path: Path) -> None:
    old, new = _made(tmp_path / "slot1.pt", 100), _made(tmp_path / "slot0.pt", 110)
    assert by_save([new, old], 5) == [[old], [new]]


def test_vanished_file_counts_as_empty_and_oldest(tmp_path: Path) -> None:
    assert size_of(tmp_path / "gone.tmp") == 0
    made = _made(tmp_path / "step_1.pt")
    assert by_save([made, tmp_path / "gone.tmp"], 1.0) == [[tmp_path / "gone.tmp"], [made]]
