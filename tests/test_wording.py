from __future__ import annotations

import pytest

from clusterdp.wording import counted, did_you_mean, duration, ranges, some_of, table


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (7262, "2 h 1 min"),
        (90_000, "1 d 1 h"),
        (86_430, "1 d"),
        (-3, "0 s"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_table_is_aligned_and_nothing_trails() -> None:
    assert table([("attempt", "ended"), ("1", "preempted"), ("10", "")]) == [
        "attempt  ended",
        "1        preempted",
        "10",
    ]


def test_a_long_list_is_shortened() -> None:
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert some_of(["a 1", "b 2"], separator=";") == "a 1; b 2"


def test_one_is_not_in_the_plural() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_a_name_that_is_close_is_offered() -> None:
    assert did_you_mean("epoch", ["epochs", "lr"], prefix="params.") == "Did you mean params.epochs?"
    assert did_you_mean("zzz", ["epochs"], "There are: epochs.") == "There are: epochs."


def test_ranges_join_numbers_that_follow_each_other() -> None:
    assert ranges([7, 0, 1, 2, 5, 8, 8]) == ["0-2", "5", "7-8"]
    assert ranges([]) == []
