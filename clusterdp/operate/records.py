"""JSON lines and one-line files that may be missing, torn or hold what nobody expected.

Who follows a run looks at the same files several times a second, and most of them have not changed: they are parsed
once. The size is asked of the open file, for over NFS only open() asks the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clusterdp.operate.tail import CHUNK, last_bytes
from clusterdp.rundir import RunDir

Record = dict[str, Any]


def first_record(path: Path) -> Record:
    """The first line of a file of JSON lines; empty if there is none yet."""
    try:
        with path.open("rb") as file:
            return _parse(file.readline(CHUNK)) or {}
    except OSError:
        return {}


def last_records(path: Path) -> Sequence[Record]:
    """The records in the last 64 KiB of a file of JSON lines, so that its length costs nothing."""
    return _records(path, CHUNK)


def read_ledger(run: RunDir) -> list[Record]:
    """All writers' events, by time."""
    records = [record for path in sorted(run.events.glob("*.jsonl")) for record in _records(path, None)]
    return sorted(records, key=time_of)


def words(path: Path) -> list[str]:
    """Of a file such as `outcome`: `requeue term 120`."""
    try:
        return path.read_text(errors="replace").split()
    except OSError:
        return []


def modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def time_of(record: Record) -> float:
    value = record.get("time")
    # Not for NaN, nor for a year that no calendar has.
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def integer(value: object) -> int | None:
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


_seen: dict[Path, tuple[tuple[int, int, int], Sequence[Record]]] = {}


def _records(path: Path, limit: int | None) -> Sequence[Record]:
    """A file is always read with the same limit."""
    try:
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
    except OSError:
        return ()
    stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if path not in _seen or _seen[path][0] != stamp:
        records = map(_parse, last_bytes(path, limit).splitlines())
        _seen[path] = (stamp, tuple(record for record in records if record is not None))
    return _seen[path][1]


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
