"""JSON, JSON lines and other text as trees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clusterdp.errors import CheckpointError
from clusterdp.plainfile import read_plain
from clusterdp.rehearse.state.stored import unreadable

_COUNTERS = ("global_step", "step", "iteration", "iter", "iter_num", "epoch")


def read_json(path: Path) -> Any:
    """Raises CheckpointError, which names the file."""
    try:
        return json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: it is no JSON: {error}. Save it again, or compare another file.") from None


def read_json_lines(path: Path) -> dict[str, Any]:
    """The last record of each step. An interrupted run has the steps twice that it did again, and a line that a kill
    has cut. Records without a step are counted. Raises CheckpointError."""
    found: dict[str, Any] = {}
    lines = _bytes(path).decode("utf-8", "replace").splitlines()
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        counter = next((name for name in _COUNTERS if isinstance(record, dict) and name in record), None)
        if counter is None:
            found[str(len(found))] = record
        else:
            known = found.setdefault(f"{counter} {record[counter]}", {})
            known |= {name: value for name, value in record.items() if name != counter}
    if lines and not found:
        raise CheckpointError(f"{path}: none of its lines is JSON. Save it again, or compare another file.")
    return found


def read_text(path: Path) -> Any:
    """By the number of each line; all bytes as one value where it is no text. Raises CheckpointError."""
    data = _bytes(path)
    try:
        if b"\0" in data:
            return data
        return {f"line {i}": line for i, line in enumerate(data.decode().splitlines(), 1)}
    except UnicodeDecodeError:
        return data


def _bytes(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise unreadable(path, error) from None
