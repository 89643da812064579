"""The files of a program's saves on disk: which of them are one checkpoint, whether one is committed, what is left."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from clusterdp.rehearse.observe.file_use import series_of


def by_save(paths: Iterable[Path], apart_s: float) -> list[list[Path]]:
    """Oldest save first, its files in the order in which they were written. apart_s: at least, between two saves. The
    shards of several ranks differ in numbers, too, and are one checkpoint."""
    saves: list[list[Path]] = []
    last = 0.0
    for path in sorted(paths, key=_written_at):
        at = _written_at(path)
        if not saves or at - last > apart_s:
            saves.append([])
        saves[-1].append(path)
        last = at
    return saves


def size_of(path: Path) -> int:
    """In bytes; 0 if the file is gone."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def is_committed(path: Path) -> bool:
    """Whether something was done after the last byte of a file was written, in its folder or in the one above: a
    rename or a link of it, a symbolic link, a pointer file. A cut of the file is then not what a kill leaves.

    File systems stamp times every few milliseconds, so a neighbour with the same time counts as later."""
    status = path.stat()
    if status.st_ctime_ns > status.st_mtime_ns:  # a rename and a link change it, and a write changes both
        return True
    if any(folder.stat().st_mtime_ns > status.st_mtime_ns for folder in (path.parent, path.parent.parent)):
        return True
    return any(_modified_ns(each) >= status.st_mtime_ns for each in _neighbours(path))


def _neighbours(path: Path) -> Iterator[os.DirEntry[str]]:
    """But for shards of the same save."""
    for folder, own in ((path.parent, path.name), (path.parent.parent, path.parent.name)):
        with os.scandir(folder) as entries:
            yield from (each for each in entries if series_of(each.name) != series_of(own))


def _modified_ns(entry: os.DirEntry[str]) -> int:
    with suppress(OSError):  # deleted meanwhile
        return entry.stat(follow_symlinks=False).st_mtime_ns
    return 0


def bytes_left(folder: Path, inode: int) -> int:
    """The size of the file with this inode, whatever its name is by now; 0 if it is gone."""
    return max((status.st_size for status in _statuses(folder) if status.st_ino == inode), default=0)


def _statuses(folder: Path) -> Iterator[os.stat_result]:
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # renamed or deleted meanwhile
                yield os.lstat(f"{base}/{name}")


def _written_at(path: Path) -> float:
    with suppress(FileNotFoundError):  # a temporary file that has just got its name
        return path.stat().st_mtime
    return 0.0
