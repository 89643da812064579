"""read_since(): what --since takes, of logs as of runs."""

from __future__ import annotations

import time

import pytest

from clusterdp.errors import ConfigError
from clusterdp.operate.find.since import read_since

NOW = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))
HOUR = 3600


@pytest.mark.parametrize(
    ("word", "ago_s"),
    [
        ("10s", 10),
        ("30m", 1800),
        ("1.5h", 5400),
        ("12h", 12 * HOUR),
        ("3d", 72 * HOUR),
        ("2w", 14 * 24 * HOUR),
        ("11:30", 1800),
        ("13:00", 23 * HOUR),
        ("2026-01-30", 36 * HOUR),
        ("2026-01-31T11:00", HOUR),
        ("2026-01-31 11:59:30", 30),
    ],
)
def test_read_since_takes_an_age_a_time_of_day_or_a_date(word: str, ago_s: int) -> None:
    assert read_since(word, NOW) == NOW - ago_s


@pytest.mark.parametrize("word", ["", "yesterday", "3", "3x", "-3d", "25:00", "2026-02-31", "9" * 30 + "d", "٣d"])
def test_read_since_refuses_an_invalid_time(word: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a time\. Write e\.g\. 10m, 12h"):
        read_since(word, NOW)
