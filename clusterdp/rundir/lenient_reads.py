"""Reads of JSON lines and one-line files that may be missing or torn, or hold something else.

A command that follows a run reads the same files several times a second, and most of them have not changed. They are
parsed once. The size is that of the open file, for over NFS only open() asks the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterdp.plainfile import MOST, open_plain, reading
from clusterdp.rundir.ledger import as_event, parse, parse_lines
from clusterdp.rundir.names import RunDir
from clusterdp.rundir.tail import CHUNK, end_of, last_bytes

Record = dict[str, Any]
LONGEST = 4096  # bytes of a one-line file
FEW = 4096  # bytes of the latest records


def first_record(path: Path) -> Record:
    """The first line of a file of JSON lines; empty if there is none yet."""
    (_, size, _), records = _seen.get(os.fspath(path), ((0, 0, 0), ()))
    if records and size <= CHUNK:  # last_records() has just read it all
        return records[0]
    try:
        with reading(path) as file:
            return parse(file.readline(CHUNK)) or {}
    except OSError:
        return {}


def last_records(path: Path) -> Sequence[Record]:
    """The records in the last 64 KiB of a file of JSON lines, so that its length costs nothing."""
    try:
        return _records(os.fspath(path), CHUNK)
    except OSError:
        return ()


def latest_records(path: Path) -> Sequence[Record]:
    """The last of these, back to where each name that is in any of them has had a value: a few out of hundreds, as a
    rule. The others are not parsed."""
    data = last_bytes(path)
    start = data.rfind(b"\n", 0, max(0, len(data) - FEW)) + 1
    records = parse_lines(data[start:].splitlines())
    names = {name for record in records for name, value in record.items() if value is not None}
    known = sum(data.count(json.dumps(name).encode() + b":", 0, start) for name in names)
    return records if data.count(b'":', 0, start) == known else parse_lines(data.splitlines())


def read_ledger(run: RunDir) -> tuple[list[Record], str]:
    """All writers' events, by time; and what there is that cannot be read, with the reason, or nothing."""
    records: list[Record] = []
    folder = os.fspath(run.path)  # here and below no Path for each file: to join them takes longer than to read
    (_, why), (names, more) = _listed(f"{folder}/attempts"), _listed(f"{folder}/events")
    unread = [each for each in (why, more) if each]
    for name in sorted(name for name in names if name.endswith(".jsonl")):
        try:
            records += _records(f"{folder}/events/{name}", MOST, as_event)
        except FileNotFoundError:
            pass
        except OSError as error:
            unread.append(f"events/{name}: cannot be read: {error.strerror}")
    return sorted(records, key=time_of), "".join(unread[:1])


def read_events(run: RunDir) -> list[Record]:
    """All writers' events that can be read, by time."""
    return read_ledger(run)[0]


def _listed(folder: str) -> tuple[list[str], str]:
    """The names in a folder, and why it cannot be listed, or nothing."""
    try:
        return os.listdir(folder), ""
    except FileNotFoundError:  # not yet
        return [], ""
    except OSError as error:
        return [], f"{os.path.basename(folder)}/: cannot be read: {error.strerror}"


def words(path: Path) -> list[str]:
    """The words of a file such as `outcome`: `requeue term 120`. None of a file that is longer than those are."""
    try:
        fd = open_plain(path)
        try:
            data = os.read(fd, LONGEST + 1)
        finally:
            os.close(fd)
    except OSError:
        return []
    return data.decode(errors="replace").split() if len(data) <= LONGEST else []


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


_seen: dict[str, tuple[tuple[int, int, int], Sequence[Record]]] = {}


def _records(path: str, limit: int, clean: Callable[[Record], Record] | None = None) -> Sequence[Record]:
    """A file is always read with the same limit, and cleaned in the same way."""
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if path not in _seen or _seen[path][0] != stamp:
            records = parse_lines(end_of(file, limit).splitlines())
            _seen[path] = (stamp, tuple(map(clean, records) if clean else records))
    return _seen[path][1]


def forget(run: RunDir) -> None:
    """Drop what was parsed of a run that is not followed: of ten thousand runs it would fill the memory."""
    inside = f"{run.path}/"
    for path in list(_seen):
        if path.startswith(inside):
            _seen.pop(path, None)
