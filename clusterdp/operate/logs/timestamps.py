"""The time that a line of a log begins with, in the forms that programs print."""

from __future__ import annotations

import re
import time
from functools import lru_cache

LOOK = 40  # characters of a line, in which its time begins
ANY = re.compile(r"\d\d:\d\d:\d\d")
DATE = r"(?P<year>[12]\d{3})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
US_DATE = r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>[12]\d{3})"  # of Hugging Face's examples
CLOCK = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d|60)(?:[.,](?P<part>\d{1,9}))?"
FORMS = (
    re.compile(rf"(?<!\d){DATE}[T ]{CLOCK} ?(?P<zone>Z|[+-]\d\d:?\d\d\b)?"),  # ISO, Python's logging, NCCL, Slurm
    re.compile(rf"(?<!\d){US_DATE}[ T,]+{CLOCK}"),
    re.compile(rf"(?:^|\[)[A-Z](?P<month>\d\d)(?P<day>\d\d) {CLOCK}"),  # glog, as torch's C++ prints
    re.compile(rf"^(?:\x1b\[[\d;]*m)*\[?{CLOCK}(?![\d:<])"),  # nothing but the time, at the very start
)
HALF_A_DAY, HALF_A_YEAR = 43_200.0, 180 * 86_400.0


def time_in(line: str, near: float | None) -> float | None:
    """Seconds since the epoch; None if there is no time. Without a zone it is local.

    `near`: a time of which the line is less than half a day (or, for a date without a year, half a year) away. None:
    nothing is known of it, and such times are not understood.
    """
    if not ANY.search(line, 0, LOOK + 20):
        return None
    for form in FORMS:
        found = form.search(line, 0, LOOK + 40)
        if found and found.start() <= LOOK:
            try:
                return _seconds(found.groupdict(), near)
            except (ValueError, OverflowError):  # the 45th of a month, or a year that no calendar has
                return None
    return None


def without_time(line: str) -> str:
    """The line without what time_in() reads."""
    if not ANY.search(line, 0, LOOK + 20):
        return line
    for form in FORMS:
        found = form.search(line, 0, LOOK + 40)
        if found and found.start() <= LOOK:
            return line[: found.start()] + line[found.end() :]
    return line


def _seconds(said: dict[str, str | None], near: float | None) -> float | None:
    clock = int(said["hour"] or 0), int(said["minute"] or 0)
    rest = int(said["second"] or 0) + float(f"0.{said['part'] or 0}")
    if "month" not in said:
        return None if near is None else _on_the_nearest_day(near, *clock) + rest
    month, day = int(said["month"] or 0), int(said["day"] or 0)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError
    if "year" not in said:
        return None if near is None else _in_the_nearest_year(near, month, day, *clock) + rest
    minute = _minute(int(said["year"] or 0), month, day, *clock, said.get("zone") or "")
    return minute + rest


@lru_cache(maxsize=1024)  # lines come by the thousand a minute
def _minute(year: int, month: int, day: int, hour: int, minute: int, zone: str) -> float:
    if not zone:
        return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    from calendar import timegm

    seconds = timegm((year, month, day, hour, minute, 0))
    if zone == "Z":
        return seconds
    east = 60 * (60 * int(zone[1:3]) + int(zone[-2:]))
    return seconds - east if zone[0] == "+" else seconds + east


def _on_the_nearest_day(near: float, hour: int, minute: int) -> float:
    year, month, day = time.localtime(near)[:3]
    found = _minute(year, month, day, hour, minute, "")
    if abs(found - near) > HALF_A_DAY:
        return _minute(year, month, day + (1 if found < near else -1), hour, minute, "")  # mktime takes a 32nd
    return found


def _in_the_nearest_year(near: float, month: int, day: int, hour: int, minute: int) -> float:
    year = time.localtime(near)[0]
    found = _minute(year, month, day, hour, minute, "")
    if abs(found - near) > HALF_A_YEAR:
        return _minute(year + (1 if found < near else -1), month, day, hour, minute, "")
    return found
