from __future__ import annotations

import time

import pytest

from clusterdp.errors import ConfigError
from clusterdp.operate.logs.choice import Choice


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rank": "3-1"}, r"--rank: '3-1' is no list of ranks. Write e.g. 3 or 0,3,8-15."),
        ({"rank": "-1"}, "--rank: '-1'"),
        ({"rank": "0", "every": True}, "--rank and --all"),
        ({"last": "ten"}, "-n: 'ten'"),
        ({"since": "yesterday"}, "--since: 'yesterday' is no time"),
        ({"since": "25:00"}, "--since: '25:00' is no time"),
    ],
)
def test_a_mistake_names_the_option_and_what_to_write(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Choice.read(**options)  # type: ignore[arg-type]


def test_a_clock_time_that_is_to_come_today_is_yesterdays() -> None:
    now = time.mktime((2023, 11, 15, 8, 0, 0, 0, 0, -1))
    for word, before in (("7:30", 1800), ("09:00", 23 * 3600), ("2h", 7200), ("1.5h", 5400), ("10m", 600)):
        assert Choice.read(since=word, now=now).since == now - before
    assert Choice.read(since="2023-11-14", now=now).since == now - 32 * 3600
