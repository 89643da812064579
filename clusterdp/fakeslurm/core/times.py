"""Slurm's forms of time: limits, points in time, and how commands print them."""

from __future__ import annotations

import re
import time

UNLIMITED = 0  # minutes
NO_LIMIT_WORDS = ("infinite", "unlimited", "-1")


class BadTime(ValueError):
    pass


def minutes(text: str) -> int:
    """Parses a time limit: `5`, `1:30`, `1:00:00`, `1-0`, `1-2:03:04`, `UNLIMITED`. Returns minutes, rounded up; 0: no
    limit."""
    if text.lower() in NO_LIMIT_WORDS:
        return UNLIMITED
    return -(-seconds(text) // 60)


def seconds(text: str) -> int:
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        raise BadTime(text)
    days, first, second, third = match.groups()
    if days is not None:  # D-H[:M[:S]]
        parts = (int(first), int(second or 0), int(third or 0))
        return ((int(days) * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]
    if third is not None:  # H:M:S
        return (int(first) * 60 + int(second)) * 60 + int(third)
    return int(first) * 60 + int(second or 0)  # M[:S]


def moment(text: str, now: float) -> float:
    """Parses a point in time, such as `now`, `now+5minutes`, `2026-11-21T10:00[:00]`, `10:00`, `2026-11-21`. Raises
    BadTime."""
    match = re.fullmatch(r"now(?:([+-])(\d+)(\w*))?", text.lower())
    if match:
        units = {"": 1, "seconds": 1, "second": 1, "minutes": 60, "minute": 60, "hours": 3600, "hour": 3600}
        units |= {"days": 86400, "day": 86400, "weeks": 604800, "week": 604800}
        if match[1] and match[3] not in units:
            raise BadTime(text)
        return now + (int(match[2]) * units[match[3]] * (1 if match[1] == "+" else -1) if match[1] else 0)
    named = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
    text = named.get(text.lower(), text)
    if text.lower() in ("today", "tomorrow"):
        return moment("00:00", now) - (86400 if text.lower() == "today" else 0)
    for form in ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%Y-%m-%d-%H:%M:%S", "%m/%d/%y", "%m%d%y"):
        try:
            return time.mktime(time.strptime(text, form))
        except ValueError:
            pass
    for form in ("%H:%M:%S", "%H:%M"):
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        today = time.localtime(now)
        when = time.mktime((*today[:3], *parsed[3:6], 0, 0, -1))
        return when if when > now else when + 86400
    raise BadTime(text)


def stamp(when: float | None, unknown: str = "Unknown", form: str = "%Y-%m-%dT%H:%M:%S") -> str:
    return unknown if when is None else time.strftime(form, time.localtime(when))


def clock(elapsed: float) -> str:
    """Writes seconds as [D-]HH:MM:SS, like sacct and scontrol."""
    days, hours, mins, secs = _split(elapsed)
    return (f"{days}-" if days else "") + f"{hours:02}:{mins:02}:{secs:02}"


def cpu_clock(used_s: float) -> str:
    """Writes seconds of CPU time like sacct: [D-]HH:MM:SS, or MM:SS.mmm below an hour."""
    days, hours, mins, secs = _split(used_s)
    if days or hours:
        return clock(used_s)
    return f"{mins:02}:{secs:02}.{int(used_s * 1000) % 1000:03}"


def short_clock(elapsed: float) -> str:
    """Writes seconds as [D-][HH:]M:SS, like squeue."""
    days, hours, mins, secs = _split(elapsed)
    if days:
        return f"{days}-{hours:02}:{mins:02}:{secs:02}"
    return f"{hours}:{mins:02}:{secs:02}" if hours else f"{mins}:{secs:02}"


def limit_clock(limit: int | None) -> str:
    return "UNLIMITED" if not limit else clock(limit * 60)


def _split(elapsed: float) -> tuple[int, int, int, int]:
    whole = max(int(elapsed), 0)
    return whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
