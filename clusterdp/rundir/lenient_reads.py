"""Reads of JSON lines and one-line files that may be missing or torn, or hold something else.

A command that follows a run reads the same files several times a second, and most of them have not changed. They are
parsed once. The size is that of the open file, for over NFS only open() asks the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterdp.plainfile import MOST, read_plain, reading
from clusterdp.rundir.ledger import as_event, parse, parse_lines
from clusterdp.rundir.names import RunDir
from clusterdp.rundir.tail import CHUNK, end_of

Record = dict[str, Any]


def first_record(path: Path) -> Record:
    """The first line of a file of JSON lines; empty if there is none yet."""
    try:
        with reading(path) as file:
            return parse(file.readline(CHUNK)) or {}
    except OSError:
        return {}


def last_records(path: Path) -> Sequence[Record]:
    """The records in the last 64 KiB of a file of JSON lines, so that its length costs nothing."""
    try:
        return _records(path, CHUNK)
    except OSError:
        return ()


def read_ledger(run: RunDir) -> tuple[list[Record], str]:
    """All writers' events, by time; and what there is that cannot be read, with the reason, or nothing."""
    records: list[Record] = []
    unread = [why for folder in ("attempts", "events") if (why := _unlisted(run, folder))]
    for path in run.event_files():
        try:
            records += _records(path, MOST, as_event)
        except FileNotFoundError:
            pass
        except OSError as error:
            unread.append(f"events/{path.name}: cannot be read: {error.strerror}")
    return sorted(records, key=time_of), "".join(unread[:1])


def read_events(run: RunDir) -> list[Record]:
    """All writers' events that can be read, by time."""
    return read_ledger(run)[0]


def _unlisted(run: RunDir, folder: str) -> str:
    try:
        os.listdir(run.path / folder)
    except FileNotFoundError:  # not yet
        return ""
    except OSError as error:
        return f"{folder}/: cannot be read: {error.strerror}"
    return ""


def words(path: Path) -> list[str]:
    """The words of a file such as `outcome`: `requeue term 120`."""
    try:
        return read_plain(path, 4096).decode(errors="replace").split()
    except OSError:
        return []


def modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def time_of(record: Record) -> float:
    value = record.get("time")
    # 0 for NaN, and for a year that no calendar has.
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def integer(value: object) -> int | None:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 63 else None


_seen: dict[Path, tuple[tuple[int, int, int], Sequence[Record]]] = {}


def _records(path: Path, limit: int, clean: Callable[[Record], Record] = dict) -> Sequence[Record]:
    """A file is always read with the same limit, and cleaned in the same way."""
    with reading(path) as file:
        stat = os.fstat(file.fileno())
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if path not in _seen or _seen[path][0] != stamp:
            _seen[path] = (stamp, tuple(map(clean, parse_lines(end_of(file, limit).splitlines()))))
    return _seen[path][1]


def forget(run: RunDir) -> None:
    """Drop what was parsed of a run that is not followed: of ten thousand runs it would fill the memory."""
    inside = f"{run.path}/"
    for path in list(_seen):
        if str(path).startswith(inside):
            _seen.pop(path, None)
