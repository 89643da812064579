from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.operate.output.formatting import ago, clock, number, shown_path
from clusterdp.wording import size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "just now"),  # the node's clock is ahead of ours
        (1, "just now"),
        (90, "90 s ago"),
        (130, "2 min ago"),
        (7000, "116 min ago"),
        (7300, "2 h ago"),
        (200_000, "2 d ago"),
    ],
)
def test_ago_prints_a_single_unit(seconds: float, words: str) -> None:
    assert ago(1000, 1000 + seconds) == words


def test_clock_shows_the_date_of_another_day() -> None:
    assert len(clock(1_700_000_000)) == len("22:13:20")
    assert len(clock(1_700_000_000, now=1_700_300_000)) == len("14 Nov 22:13:20")


def test_shown_path_is_relative_and_quoted_for_the_shell(tmp_path: Path, elsewhere: Path) -> None:
    assert shown_path(elsewhere / "runs" / "a") == "runs/a"
    assert shown_path(elsewhere / "my run") == "'my run'"
    assert shown_path(tmp_path / "far") == str(tmp_path / "far")


def test_number_prints_at_most_four_significant_digits() -> None:
    assert [number(x) for x in (0.0123456, 1e-7, 3, "nan", 12345.678)] == ["0.01235", "1e-07", "3", "nan", "1.235e+04"]


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (2e15, "2 PB"),
    ],
)
def test_size_prints_at_most_three_significant_digits(nbytes: float, words: str) -> None:
    assert size(nbytes) == words
