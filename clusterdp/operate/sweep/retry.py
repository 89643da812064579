"""Which elements `clusterdp sweep --retry` submits again, and whether they may be."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.formatting import shown_path
from clusterdp.operate.queue import live_jobs
from clusterdp.operate.run_state import RunState
from clusterdp.operate.sweep.elements import ElementStatus, SweepStatus, ask_for_all
from clusterdp.operate.sweep.table import listed

STATES = {
    "failed": {RunState.FAILED, RunState.GAVE_UP, RunState.VANISHED},
    "stopped": {RunState.STOPPED},
    "cancelled": {RunState.CANCELLED},
    "unsubmitted": {RunState.WAITING},  # of those without a job: sbatch has refused their array
}


def to_retry(status: SweepStatus, which: str) -> list[ElementStatus]:
    """The elements in these states. RunError if a job of one is still ending; SlurmError if nobody can say."""
    path = shown_path(status.folder.path)
    if status.said:
        raise SlurmError(f"{path}: {status.said}. So it is not known which of its jobs are over.")
    found = [each for each in status.elements if each.status.state in STATES[which]]
    if which == "unsubmitted":
        found = [each for each in found if each.history.job is None]
    rows = ask_for_all([each.history for each in found]) or {}
    ending = [each for each in found if live_jobs({job: rows[job] for job in each.history.jobs if job in rows})]
    if ending:
        raise RunError(f"{path}: jobs of elements {listed(ending)} are still ending. Wait for them, then retry.")
    return found


def with_own_script(elements: Sequence[ElementStatus]) -> list[ElementStatus]:
    """Those that were resumed one by one before, maybe with other resources: they have a script of their own."""
    return [each for each in elements if each.history.run.script.exists()]
