"""The files of a program's saves on disk: which of them are one checkpoint, whether one is committed, what is left."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


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


def _written_at(path: Path) -> float:
    with suppress(FileNotFoundError):  # a temporary file that has just got its name
        return path.stat().st_mtime
    return 0.0
