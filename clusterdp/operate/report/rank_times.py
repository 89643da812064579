"""Where the time of a step goes, by rank: attempts/*/times.json, as the ranks wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from clusterdp.operate.run_history import RunHistory
from clusterdp.plainfile import read_plain

MANY = 32  # ranks: the slowest


@dataclass(frozen=True)
class RankTime:
    """parts: milliseconds a step. bars: (part's place among all, left and width in percent of the slowest rank's)."""

    rank: int
    node: str
    ms: float
    parts: dict[str, float]
    bars: list[tuple[int, float, float, str]]


@dataclass(frozen=True)
class RankTimes:
    attempt: int
    steps: int
    parts: list[str]
    ranks: list[RankTime]
    of: int  # ranks in all
    diagnosis: list[str]


def rank_times(history: RunHistory) -> RankTimes | None:
    """Of the newest attempt that has any."""
    for attempt in reversed(history.attempts):
        try:
            found = json.loads(read_plain(history.run.attempt(attempt.name).times))
            return _as_told(attempt.number, found)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # none yet, or no file of ours
    return None


def _as_told(number: int, found: dict[str, Any]) -> RankTimes | None:
    told = [(rank, each, _ms(each["ms"])) for rank, each in enumerate(found["ranks"])]
    parts = list(dict.fromkeys(name for _, _, ms in told for name in ms))
    most = max(sum(ms.values()) for _, _, ms in told)
    if most <= 0:
        raise ValueError("no time was measured")
    slowest = sorted(told, key=lambda each: -sum(each[2].values()))[:MANY]
    ranks = []
    for rank, each, ms in sorted(slowest, key=lambda one: one[0]):
        bars, left = [], 0.0
        for i, name in enumerate(parts):
            width = 100 * ms.get(name, 0.0) / most
            bars.append((i, round(left, 3), round(width, 3), f"{name}: {ms.get(name, 0.0):.2f} ms"))
            left += width
        ranks.append(RankTime(rank, str(each.get("node") or ""), sum(ms.values()), ms, bars))
    return RankTimes(number, int(found["steps"]), parts, ranks, len(told), [str(line) for line in found["diagnosis"]])


def _ms(told: dict[str, Any]) -> dict[str, float]:
    return {str(name): max(0.0, float(ms)) for name, ms in told.items() if float(ms) < 1e9}
