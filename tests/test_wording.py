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
def test_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_table_is_aligned_without_trailing_spaces() -> None:
    assert table([("attempt", "ended"), ("1", "preempted"), ("10", "")]) == [
        "attempt  ended",
        "1        preempted",
        "10",
    ]


def test_long_list_is_shortened_by_some_of() -> None:
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert some_of(["a 1", "b 2"], separator=";") == "a 1; b 2"


def test_counted_uses_the_singular_for_1() -> None:
    assert [counted(number, "step") for number in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]


def test_did_you_mean_suggests_a_close_name_or_the_fallback_text() -> None:
    assert did_you_mean("epoch", ["epochs", "lr"], prefix="params.") == "Did you mean params.epochs?"
    assert did_you_mean("zzz", ["epochs"], "There are: epochs.") == "There are: epochs."


def test_ranges_joins_consecutive_numbers() -> None:
    assert ranges([7, 0, 1, 2, 5, 8, 8]) == ["0-2", "5", "7-8"]
    assert ranges([]) == []
