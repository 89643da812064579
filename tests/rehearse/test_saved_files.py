"""The files of a program's saves on disk, told apart by their times and inodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp.rehearse.drills.saved_files import by_save, bytes_left, is_committed, size_of


def _made(path: Path, at: int = 100) -> Path:
    path.write_bytes(b"state")
    os.utime(path, (at, at))
    return path


def test_shards_of_ranks_are_one_checkpoint(tmp_path: Path) -> None:
    shards = [_made(tmp_path / "rank0.pt", 100), _made(tmp_path / "rank1.pt", 101)]
    assert by_save(shards, 5) == [shards]


def test_newest_save_is_last_whatever_its_names_are(tmp_path: Path) -> None:
    old, new = _made(tmp_path / "slot1.pt", 100), _made(tmp_path / "slot0.pt", 110)
    assert by_save([new, old], 5) == [[old], [new]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out" / "ckpt"
    made.mkdir(parents=True)
    return made


def _tick(path: Path, elsewhere: Path) -> None:
    """Waits until the file system gives a later time than this file's."""
    while elsewhere.stat().st_mtime_ns <= path.stat().st_mtime_ns:
        elsewhere.write_bytes(b"")


def test_file_just_written_is_not_committed(folder: Path, tmp_path: Path) -> None:
    path, shard = folder / "rank0.pt", folder / "rank1.pt"
    path.write_bytes(b"sta")
    (tmp_path / "clock").touch()
    _tick(path, tmp_path / "clock")
    path.write_bytes(b"state")
    shard.write_bytes(b"state")
    os.utime(folder, (1, 1))
    assert not is_committed(path)


def _renamed(path: Path) -> Path:
    return path.rename(path.with_name("b.pt"))


def _linked_elsewhere(path: Path) -> Path:
    (path.parent.parent.parent / "a.pt").hardlink_to(path)
    return path


def _linked(path: Path) -> Path:
    path.with_name("latest").symlink_to(path.name)
    return path


def _pointed(path: Path) -> Path:
    path.with_name("latest.json").write_text(path.name)
    return path


@pytest.mark.parametrize("commit", [_renamed, _linked_elsewhere, _linked, _pointed])
def test_commit_after_the_last_byte_is_seen(folder: Path, tmp_path: Path, commit: Callable[[Path], Path]) -> None:
    (folder / "latest.json").write_text("none")
    path = folder / "a.pt"
    path.write_bytes(b"state")
    (tmp_path / "clock").touch()
    _tick(path, tmp_path / "clock")
    assert is_committed(commit(path))


def test_bytes_left_are_found_under_a_new_name(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.tmp")
    inode = path.stat().st_ino
    (tmp_path / "out").mkdir()
    path.rename(tmp_path / "out" / "a.pt")
    assert bytes_left(tmp_path, inode) == 5


def test_bytes_left_of_a_deleted_file_are_none(tmp_path: Path) -> None:
    path = _made(tmp_path / "a.tmp")
    inode = path.stat().st_ino
    path.unlink()
    assert bytes_left(tmp_path, inode) == 0


def test_vanished_file_is_empty_and_oldest(folder: Path) -> None:
    assert size_of(folder / "gone.tmp") == 0
    made = _made(folder / "step_1.pt")
    assert by_save([made, folder / "gone.tmp"], 1.0) == [[folder / "gone.tmp"], [made]]
