from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from clusterdp.operate.logs.timed_log import time_in, without_time


@pytest.fixture(autouse=True)
def _zone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-23T08:00:01 x",
        "2026-11-23 08:00:01,000 INFO x",
        "2026/11/23 08:00:01 x",
        "[2026-11-23 08:00:01] n1:12:34 [0] NCCL WARN x",
        "[2026-11-23T08:00:01.000] error: x",
        "2026-11-23T08:00:01Z x",
        "2026-11-23T10:00:01+02:00 x",
        "2026-11-23 02:30:01 -0530 x",
        "INFO:root:2026-11-23 08:00:01 x",
        "\x1b[32m2026-11-23 08:00:01.000\x1b[0m | x",
        "11/23/2026 08:00:01 - INFO - x",
        "[rank3]:[E1123 08:00:01.000000000 ProcessGroupNCCL.cpp:632] x",
        "I1123 08:00:01.000000 12 x.cc:1] x",
        "[08:00:01] x",
        "08:00:01 INFO x",
    ],
)
def test_time_in_reads_common_timestamp_formats(line: str) -> None:
    near = time.mktime((2026, 11, 23, 3, 0, 0, 0, 0, -1))
    assert time_in(line, near) == time.mktime((2026, 11, 23, 8, 0, 1, 0, 0, -1))
    assert "08:00:01" not in without_time(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 12  loss 0.3",
        " 10%|###  | 1/10 [00:12<01:00:34,  3.2it/s]",
        "[00:00:12<00:01:34]",
        "2026-13-45 08:00:01 x",
        "2026-11-23 25:00:01 x",
        "120:08:00:01",
        "a sentence of more than forty letters that ends 2026-11-23 08:00:01",
    ],
)
def test_time_in_ignores_text_unlike_a_timestamp(line: str) -> None:
    assert time_in(line, 1.7e9) is None


def test_time_in_gives_a_bare_time_the_date_nearest_the_previous_line() -> None:
    midnight = time.mktime((2026, 12, 31, 23, 59, 0, 0, 0, -1))
    assert time_in("[00:00:30] x", midnight) == midnight + 90
    assert time_in("[23:58:00] x", midnight + 90) == midnight - 60
    assert time_in("I0101 00:00:30.5 x", midnight) == midnight + 90.5
    assert time_in("[08:00:01] x", None) is None
