"""The account of a run beside what sacct says."""

from __future__ import annotations

import pytest

from clusterdp.operate.account.run_account import RunAccount, account_of
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from tests.e2e.run import Run
from tests.waiting import wait_for


def assert_sacct_agrees(run: Run) -> RunAccount:
    """Of a run that is over: the attempts of each allocation took as long, within 2 s or 1 %, and the parts of each
    attempt add up."""
    history = read_history(run.files)
    found = account_of(history, None, ended_by_slurm(run.files, history.attempts))

    starts: dict[str, float] = {}  # by <job>.<restart>, because an attempt that restarts in place has no row of its own
    for attempt in found.attempts:
        assert attempt.parts.allocated == pytest.approx(attempt.place.seconds), f"{attempt}\n{run.account()}"
        start = ".".join(attempt.name.split(".")[:2])
        starts[start] = starts.get(start, 0.0) + attempt.parts.allocated

    def elapsed() -> list[int]:
        """Of each allocation, once accounting has them all."""
        words = ("--duplicates", "--allocations", "--noheader", "--parsable2", "--jobs", run.job)
        rows = run.cluster.run("sacct", *words, "--format=ElapsedRaw,Start,End").splitlines()
        seconds = [int(row.split("|")[0]) for row in rows if not {"None", "Unknown"} & {*row.split("|")}]
        return seconds if len(seconds) == len(starts) else []

    rows = wait_for("sacct to have all attempts", elapsed, 30, every_s=0.5, report=run.account)
    for (start, allocated), seconds in zip(starts.items(), rows, strict=True):
        told = f"{start}: {allocated}\nsacct has {rows}\n{run.account()}"
        assert abs(allocated - seconds) <= max(2, seconds / 100) + 1e-6, told
    return found
