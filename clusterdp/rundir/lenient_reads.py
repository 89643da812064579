"""Reads JSON lines and one-line files that may be missing or torn, or contain something else.

A command that follows a run reads the same files several times a second, and most files have not changed. Therefore a
file is parsed again only if it has changed. The size is taken from the open file, because over NFS only open() asks the
server."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

from clusterdp.plainfile import MOST, open_plain
from clusterdp.rundir.ledger import as_event, parse, parse_lines
from clusterdp.rundir.names import RunDir
from clusterdp.rundir.tail import CHUNK, end_of

Record = dict[str, Any]
Read = TypeVar("Read")
LONGEST = 4096  # the largest number of bytes of a one-line file
LAST = 50  # records


def ends_of(path: Path) -> tuple[Record, Sequence[Record]]:
    """Returns the first record of a file of JSON lines (empty if the file has no record yet) and its last records. The
    time that this takes does not depend on the file's length. The last records are LAST in number; or all records in
    the last 64 KiB, if an earlier record in these has a key that the LAST records do not have. Other lines are not
    parsed."""
    try:
        return _once(os.fspath(path), _ends)
    except OSError:
        return {}, ()


def _ends(file: FileIO) -> tuple[Record, Sequence[Record]]:
    file.seek(0)
    first = file.read(CHUNK).partition(b"\n")[0]
    return parse(first) or {}, _latest(end_of(file, CHUNK).splitlines())


def _latest(lines: Sequence[bytes]) -> Sequence[Record]:
    records = parse_lines(lines[-LAST:])
    names = {name for record in records for name, value in record.items() if value is not None}
    others = b"\n".join(lines[:-LAST])
    known = sum(others.count(json.dumps(name).encode() + b":") for name in names)
    return records if others.count(b'":') == known else parse_lines(lines)


def read_ledger(run: RunDir) -> tuple[list[Record], str]:
    """Returns the events of all writers, ordered by time, and the name of the first unreadable file with the reason, or
    ""."""
    records: list[Record] = []
    folder = os.fspath(run.path)  # no Path for each file, because joining Paths takes longer than reading
    (_, why), (names, more) = _listed(f"{folder}/attempts"), _listed(f"{folder}/events")
    unread = [each for each in (why, more) if each]
    for name in sorted(name for name in names if name.endswith(".jsonl")):
        try:
            records += _once(f"{folder}/events/{name}", _events)
        except FileNotFoundError:
            pass
        except OSError as error:
            unread.append(f"events/{name}: cannot be read: {error.strerror}")
    return sorted(records, key=time_of), "".join(unread[:1])


def read_events(run: RunDir) -> list[Record]:
    """Returns the events of all writers, ordered by time, as far as they can be read."""
    return read_ledger(run)[0]


def _listed(folder: str) -> tuple[list[str], str]:
    """Returns the names in a folder, and the reason why it cannot be listed, or ""."""
    try:
        return os.listdir(folder), ""
    except FileNotFoundError:  # the folder does not exist yet
        return [], ""
    except OSError as error:
        return [], f"{os.path.basename(folder)}/: cannot be read: {error.strerror}"


def words(path: Path) -> list[str]:
    """Returns the words of a file such as `outcome`: `requeue term 120`; no words if the file has over LONGEST
    bytes."""
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
    # The result is 0 for NaN, and for an impossible year.
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def integer(value: object) -> int | None:
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 63 else None


def _events(file: FileIO) -> Sequence[Record]:
    return tuple(map(as_event, parse_lines(end_of(file, MOST).splitlines())))


_seen: dict[str, tuple[tuple[int, int, int], Any]] = {}


def _once(path: str, read: Callable[[FileIO], Read]) -> Read:
    """Returns the result of `read`, which is cached as long as the file does not change. For the same file, every call
    must pass the same `read`."""
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        stat = os.fstat(file.fileno())
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if path not in _seen or _seen[path][0] != stamp:
            _seen[path] = (stamp, read(file))
    read_once: Read = _seen[path][1]
    return read_once


def forget(run: RunDir) -> None:
    """Drops the cached files of a run that is not followed, because the files of ten thousand runs would fill the
    memory."""
    inside = f"{run.path}/"
    for path in list(_seen):
        if path.startswith(inside):
            _seen.pop(path, None)
