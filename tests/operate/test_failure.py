"""The rank that failed first is the one to read; the others only report that it is gone."""

from __future__ import annotations

import os

import pytest

from clusterdp.operate import failure
from clusterdp.operate.failure import find_failure
from clusterdp.operate.run_history import read_history
from tests.operate.builder import AttemptBuilder, RunBuilder

ECHO = "Traceback (most recent call last):\nRuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer\n"
CAUSE = "Traceback (most recent call last):\n  File x\nValueError: the loss is nan\n"


def crashed(builder: RunBuilder, logs: dict[int, str]) -> AttemptBuilder:
    attempt = builder.submitted().attempt()
    for when, (rank, text) in enumerate(logs.items()):
        attempt.printed(text, rank)
        os.utime(attempt.files.rank_log(rank), (when, when))
    return attempt.failed(exit=1)


def test_an_echo_of_anothers_death_is_not_the_cause_even_if_it_is_earlier(builder: RunBuilder) -> None:
    crashed(builder, {0: ECHO, 1: ECHO, 2: "step 1\n" + CAUSE, 3: "fine\n"})
    found = find_failure(read_history(builder.run))
    assert found.rank == 2
    assert found.lines[-1] == "ValueError: the loss is nan"


@pytest.mark.parametrize(
    "words",
    [
        ECHO + "clusterdp: this follows from another rank's failure: rank 2: ClusterdpError: loader: ...\n",
        "step 1\nclusterdp: ending rank 0, because another failed: rank 2: ClusterdpError: loader: ...\n",
    ],
)
def test_a_rank_that_said_why_in_one_line_is_named_by_the_others(builder: RunBuilder, words: str) -> None:
    crashed(builder, {0: words, 1: ECHO, 2: "step 1\nclusterdp: loader: a worker was killed\n"})
    builder.batch_log("srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n1: task 0: Killed\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.lines[-1]) == (2, "clusterdp: loader: a worker was killed")


def test_an_echo_that_others_name_is_no_cause(builder: RunBuilder) -> None:
    """Rank 1 died without a word; rank 0 noticed first, and told the others."""
    named = "clusterdp: ending rank 3, because another failed: rank 0: RuntimeError: Connection closed by peer\n"
    crashed(builder, {0: ECHO, 3: named, 2: CAUSE})
    assert find_failure(read_history(builder.run)).rank == 2


def test_of_several_causes_the_earliest_counts(builder: RunBuilder) -> None:
    crashed(builder, {3: CAUSE, 0: CAUSE, 1: CAUSE})
    assert find_failure(read_history(builder.run)).rank == 3


def test_a_rank_that_was_killed_before_it_printed_anything_is_named_by_srun(builder: RunBuilder) -> None:
    crashed(builder, {0: "step 1\n", 1: "step 1\n", 2: "step 1\nstep 2\n"})
    builder.batch_log("srun: error: n1: task 2: Out Of Memory\nsrun: error: n1: tasks 0-1: Terminated\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.said, found.lines) == (2, "Out Of Memory", ["step 1", "step 2"])


def test_torchruns_agent_speaks_for_its_ranks_if_they_did_not(builder: RunBuilder) -> None:
    attempt = crashed(builder, {})
    (attempt.files.logs / "node-00001.out").write_text("Traceback (most recent call last):\nno such file: train.py\n")
    found = find_failure(read_history(builder.run))
    assert (found.rank, found.lines[-1]) == (None, "no such file: train.py")


def test_without_any_rank_the_batch_script_speaks(builder: RunBuilder) -> None:
    builder.submitted().batch_log("".join(f"line {i}\n" for i in range(100)))
    found = find_failure(read_history(builder.run))
    assert found.log == builder.run.path / "slurm-7.out"
    assert found.lines == [f"line {i}" for i in range(85, 100)]


def test_no_log_at_all_is_no_error(builder: RunBuilder) -> None:
    found = find_failure(read_history(builder.submitted().run))
    assert (found.log, found.lines) == (None, [])


def test_an_attempt_that_gave_up_points_to_the_one_before(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").printed(CAUSE, 1).requeued("crash")
    builder.attempt("7.1").failed("gave-up")
    assert find_failure(read_history(builder.run)).rank == 1


def test_an_attempt_that_ran_and_then_gave_up_speaks_for_itself(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").printed(CAUSE, 1).requeued("asked")
    builder.attempt("7.1").printed(CAUSE, 2).failed("gave-up")
    assert find_failure(read_history(builder.run)).rank == 2


def test_a_thousand_ranks_are_read_once_each_and_only_at_their_ends(
    builder: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = builder.submitted().attempt()
    for rank in range(1000):
        attempt.printed("noise\n" * 10_000 if rank == 500 else ECHO, rank)
    attempt.printed("noise\n" * 10_000 + CAUSE, 999).failed()
    read = []
    real = failure.last_bytes

    def counted(*args: object) -> bytes:
        data: bytes = real(*args)  # type: ignore[arg-type]
        read.append(len(data))
        return data

    monkeypatch.setattr(failure, "last_bytes", counted)
    assert find_failure(read_history(builder.run)).rank == 999
    assert len(read) <= 1003
    assert max(read) <= 64 * 1024
