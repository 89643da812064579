"""The account of a run beside what sacct says."""

from __future__ import annotations

import pytest

from clusterdp.operate.account.run_account import RunAccount, account_of
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from tests.e2e.run import Run
from tests.waiting import wait_for


def assert_sacct_agrees(run: Run) -> RunAccount:
    """Of a run that is over: each attempt was allocated as long, within 2 s or 1 %, and its parts add up."""
    history = read_history(run.files)
    found = account_of(history, None, ended_by_slurm(run.files, history.attempts))

    def elapsed() -> list[int]:
        """Of each attempt, once accounting has them all."""
        words = ("--duplicates", "--allocations", "--noheader", "--parsable2", "--jobs", run.job)
        rows = run.cluster.run("sacct", *words, "--format=ElapsedRaw,Start,End").splitlines()
        seconds = [int(row.split("|")[0]) for row in rows if not {"None", "Unknown"} & {*row.split("|")}]
        return seconds if len(seconds) == len(found.attempts) else []

    rows = wait_for("sacct to have all attempts", elapsed, 30, every_s=0.5, report=run.account)
    for attempt, seconds in zip(found.attempts, rows, strict=True):
        told = f"{attempt}\nsacct has {rows}\n{run.account()}"
        assert abs(attempt.parts.allocated - seconds) <= max(2, seconds / 100) + 1e-6, told
        assert attempt.parts.allocated == pytest.approx(attempt.place.seconds), told
    return found
