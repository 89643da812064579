"""Times and amounts of memory in the forms that Slurm writes and reads."""

from __future__ import annotations

import re

MEGABYTES = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "": 1.0}


def seconds_of(text: str) -> float | None:
    """Returns the seconds of a time such as `90` (minutes), `1:30` (minutes and seconds), `1:00:00`, `1-12`,
    `1-12:00:00` or `30 sec`; None if the text means no limit, or is not a time."""
    if match := re.fullmatch(r"(\d{1,9}) (?:sec|s)", text):
        return float(match[1])
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,9})(?::(\d{1,2}))?(?::(\d{1,2}))?", text)
    if match is None:
        return None
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    if match[4] is not None:
        return first * 3600 + second * 60 + third
    return first * 60 + second


def clock_of(seconds: float) -> str:
    """Returns seconds in Slurm's form `1-00:30:00` or `0:30:00`."""
    days, rest = divmod(int(seconds), 86400)
    hours, clock = rest // 3600, f"{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{hours:02}:{clock}" if days else f"{hours}:{clock}"


def megabytes_of(text: str) -> float | None:
    """Returns the megabytes of an amount such as `64G`, `4000` (megabytes) or `62.50G`; None for text such as
    UNLIMITED."""
    match = re.fullmatch(r"(?i)([0-9.]{1,12})([KMGT]?)B?", text)
    return float(match[1]) * MEGABYTES[match[2].upper()] if match else None
