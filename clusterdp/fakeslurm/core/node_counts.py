"""NodeCounts: how many nodes a job may have, as --nodes and NumNodes= write it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NodeCounts:
    least: int
    most: int
    listed: list[int] = field(default_factory=list)  # of a list like 1-2,4; empty for a number or a range

    @classmethod
    def of(cls, text: str, knows_lists: bool = True) -> NodeCounts:
        """Raises ValueError with Slurm's error text."""
        if not knows_lists and (odd := next((part for part in text.split("-") if {*part} & {",", ":"}), "")):
            raise ValueError(f'"{odd}" is not a valid node count')
        parts = [_range(part) if part else (0, 0) for part in text.split(",")]
        if text.startswith(","):
            raise ValueError("invalid number of nodes (-N -1--1)")
        if len(parts) == 1 and ":" not in text:
            return cls(*parts[0])
        counts = sorted({count for least, most in parts for count in range(least, most + 1)})
        return cls(counts[0], counts[-1], counts)


def _range(text: str) -> tuple[int, int]:
    """Returns the ends of a range. Slurm accepts a step, as in 2-8:2, but takes only the first number."""
    text, step, _ = text.partition(":")
    low, dash, high = text.partition("-")
    for part in (low, high.lstrip("-")):
        if part and not re.fullmatch(r"\d+[kKmM]?", part):
            raise ValueError(f'"{part}" is not a valid node count')
    least = _count(low) if low else 1
    most = _count(high) if dash else least
    if most < least:
        raise ValueError(f"Maximum node count {most} is less than minimum node count {least}")
    return least, least if step else most


def _count(text: str) -> int:
    """Returns the number in a text like 2 or 2k, or -1 for a text without one."""
    if not text[:1].isdigit():
        return -1
    scale = {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)
    return int(text.rstrip("kKmM")) * scale
