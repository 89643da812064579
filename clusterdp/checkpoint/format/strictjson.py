"""Reads JSON, and refuses duplicate keys, NaN and Infinity, which Python's json accepts. Torch-free."""

from __future__ import annotations

import json
import math
from typing import Any


def loads(data: bytes | bytearray) -> Any:
    """Parses JSON. Raises ValueError, or RecursionError if the JSON is nested too deeply."""
    return _DECODER.decode(data.decode("ascii"))


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"it has the key {twice!r:.80} twice")
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has the number {text:.80}")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_each_key_once, parse_float=_number, parse_constant=_number)
