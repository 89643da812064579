"""The ranks of a node share a log: each verb shows the lines of the ranks that are asked for."""

from __future__ import annotations

import pytest

from clusterdp.errors import RunError
from clusterdp.operate.status.follow import Pace
from clusterdp.rundir import RunDir
from tests.operate.builder import AttemptBuilder, RunBuilder
from tests.operate.logs.test_show_logs import Script, printed

TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3', "ValueError: nan"]


@pytest.fixture
def attempt(builder: RunBuilder) -> AttemptBuilder:
    attempt = builder.submitted().attempt()
    attempt.labelled("0: a", "1: b", "0: \r 1 %\r 2 %", "1: " + "x" * 1024, "0: c", "1: y")
    return attempt.labelled("2: d", "3: e", "2: f", node=1)


@pytest.fixture
def run(attempt: AttemptBuilder) -> RunDir:
    return attempt.builder.run


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "a\n\r 1 %\r 2 %\nc\n"),
        ({"rank": "3"}, "e\n"),
        ({"rank": "1", "last": "1"}, "x" * 1024 + "y\n"),
        ({"rank": "0", "last": "0"}, ""),
        ({"rank": "2", "terminal": True}, "d\nf\n"),
        ({"rank": "0,2-3"}, "[0] a\n[0]  2 %\n[0] c\n[2] d\n[2] f\n[3] e\n"),
        ({"every": True, "last": "1"}, f"[0] c\n[1] {'x' * 1024}y\n[2] f\n[3] e\n"),
        ({"rank": "0,7", "last": "1"}, "==> there is no log of rank 7 <==\n[0] c\n"),
    ],
)
def test_logs_prints_wanted_ranks_out_of_shared_logs(run: RunDir, options: dict[str, object], text: str) -> None:
    assert printed(run, **options) == text


def test_last_line_of_many_pieces_is_whole_with_or_without_an_end(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    attempt.labelled("1: first", *["1: " + "x" * 1024] * 10, "0: a")
    for options in ({"last": "1"}, {"last": "1", "every": True}):
        assert "x" * 10240 in printed(builder.run, rank=None if "every" in options else "1", **options)
    attempt.labelled("1: first", *["1: " + "x" * 1024] * 10, "1: y", "0: a")
    assert printed(builder.run, rank="1", last="1") == "x" * 10240 + "y\n"


def test_rank_without_lines_is_an_error_with_known_ranks(run: RunDir) -> None:
    with pytest.raises(RunError, match=r"--rank 7: attempt 1 has no log of it. It has those of ranks 0-3"):
        printed(run, rank="7")


def test_unreadable_logs_of_nodes_are_named_together(run: RunDir) -> None:
    for node in (2, 3):
        (run.attempt("7.0").logs / f"node-0000{node}.log").mkdir()
    text = "logs/node-00002.log and those of node 3: cannot be read: Is a directory <==\n"
    assert text in printed(run, every=True)


def test_errors_in_a_shared_log_stay_with_their_ranks(builder: RunBuilder) -> None:
    lines = [f"{rank}: {line}" for line in ["step 1", *TRACEBACK] for rank in (0, 1)]
    builder.submitted().attempt().labelled(*lines[:-1], "1: KeyError: 'x'")
    found = "\n".join(TRACEBACK)
    other = "\n".join([*TRACEBACK[:-1], "KeyError: 'x'"])
    assert printed(builder.run, errors=True) == f"rank 0: {found}\n\nrank 1: {other}\n\n"


def test_errors_follow_a_traceback_through_lines_of_another_rank(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().labelled("0: step 1")
    lines = [f"0: {line}" for line in TRACEBACK]

    def fails() -> None:
        attempt.labelled("0: step 1", "1: step 1", lines[0], lines[1], "1: step 2")

    def ends() -> None:
        attempt.labelled("0: step 1", "1: step 1", lines[0], lines[1], "1: step 2", "1: step 3", lines[2])
        attempt.finished()

    text = printed(builder.run, Pace(sleep=Script(fails, ends, lambda: None)), errors=True, follow=True)
    assert text == "rank 0: " + "\n".join(TRACEBACK) + "\n\n"


def test_follow_prints_a_late_rank_of_a_shared_log(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().labelled().labelled(node=1)

    def begins() -> None:
        attempt.labelled("2: other", "3: mine", node=1)

    def goes_on() -> None:
        attempt.labelled("2: other", "3: mine", "3: more", node=1)
        attempt.finished()

    assert (
        printed(builder.run, Pace(sleep=Script(begins, goes_on, lambda: None)), rank="3", follow=True) == "mine\nmore\n"
    )
