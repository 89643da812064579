"""AttemptRow: steps that a program has printed, and no others are on record."""

from __future__ import annotations

from pathlib import Path

from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.judge.verdict import rows_of
from clusterdp.rundir import Ledger, RunDir
from tests.operate.builder import RunBuilder


def test_attempt_with_printed_steps_is_not_reported_as_crashed_at_start(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    attempt = run.attempt("7.0")
    attempt.logs.mkdir(parents=True)
    Ledger(run, "submit-7", "submit").write("submitted", job="7", name="x")
    Ledger(run, "7.0", "batch").write("started", job="7")
    history = read_history(run)
    history = history._replace(attempts=tuple(each._replace(cause="start") for each in history.attempts))
    [row] = rows_of(history, {"7.0": [1, 29, 30]})
    assert (row.first_step, row.last_step, row.said) == (1, 30, "crashed at step 30")
    [row] = rows_of(history)
    assert (row.first_step, row.said) == (None, "crashed at its start")
    [row] = rows_of(history, is_silent=True)
    assert (row.first_step, row.said) == (None, "crashed")


def test_time_before_the_first_printed_step_counts_as_starting(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run").submitted()
    attempt = builder.attempt()
    builder.passes(10)
    attempt.exited(1).failed()
    history = read_history(builder.run)
    began = history.attempts[0].started or 0.0
    [row] = rows_of(history, {"7.0": [1, 30]}, {"7.0": began + 4})
    [unseen] = rows_of(history, {"7.0": [1, 30]})
    assert row.spent["starting"] == unseen.spent["starting"] + 4
    assert row.spent["training"] == unseen.spent["training"] - 4 > 4
