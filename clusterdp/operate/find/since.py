"""read_since(): parses the time that --since names, for `clusterdp logs` and `clusterdp list`."""

from __future__ import annotations

import re
import time
from datetime import date

from clusterdp.errors import ConfigError

UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
AGO = re.compile(r"(\d{1,9}(?:\.\d+)?) ?(s|m|min|h|d|w)", re.ASCII)
CLOCK = re.compile(r"(\d\d?):(\d\d)(?::(\d\d))?", re.ASCII)
DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?):(\d\d)(?::(\d\d))?)?", re.ASCII)


def read_since(word: str, now: float | None = None) -> float:
    """Returns the time in seconds since 1970. A time of day means its last occurrence before `now`. Raises ConfigError
    for a word that is not a time."""
    now = time.time() if now is None else now
    try:
        if found := AGO.fullmatch(word):
            return now - float(found[1]) * UNITS_S[found[2]]
        if found := CLOCK.fullmatch(word):
            year, month, day = time.localtime(now)[:3]
            clock = _clock(*(int(part or 0) for part in found.groups()))
            at = time.mktime((year, month, day, *clock, 0, 0, -1))
            return at if at <= now else time.mktime((year, month, day - 1, *clock, 0, 0, -1))
        if found := DATE.fullmatch(word):
            year, month, day, *parts = [int(part or 0) for part in found.groups()]
            date(year, month, day)  # raises ValueError for a day that is not in the calendar
            return time.mktime((year, month, day, *_clock(*parts), 0, 0, -1))
    except (ValueError, OverflowError):
        pass
    examples = "10m, 12h, 3d, 2w, 14:30, 2026-01-31 or 2026-01-31T14:30"
    raise ConfigError(f"--since: {word!r} is not a time. Write e.g. {examples}.")


def _clock(hour: int, minute: int, second: int) -> tuple[int, int, int]:
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError
    return hour, minute, second
