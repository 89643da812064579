"""What slurmstepd wrote into a job's output as it ended an attempt: the one place that says on whose behalf.

    slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO PREEMPTION ***

A TERM looks the same to the ranks whether it comes from scancel, a preemption or somebody else's requeue, and what is
killed at once leaves no word of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from clusterdp.operate.attempt import AttemptRecord
from clusterdp.operate.failure import batch_log
from clusterdp.operate.tail import last_bytes
from clusterdp.rundir import RunDir

NOTICE = re.compile(rb"\*\*\* JOB \S+ ON \S+ CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ?([^*,\n]*)")
CAUSES = {
    "": "cancelled",
    "DUE to SIGNAL Terminated": "cancelled",  # the same in newer releases
    "DUE TO PREEMPTION": "preempted",
    "DUE TO JOB REQUEUE": "requeued",
    "DUE TO TIME LIMIT": "timeout",
    "DUE TO NODE FAILURE": "node-failed",
}
GUESSED = frozenset({"", "lost", "preempted"})  # causes that the next attempt wrote, or that follow from a TERM


def with_notices(run: RunDir, attempts: Sequence[AttemptRecord], cancelled: bool) -> tuple[AttemptRecord, ...]:
    """The attempts, where the cause of an end is only guessed with the one that Slurm gave."""
    known = list(attempts)
    for i, attempt in enumerate(known):
        ended = bool(attempt.cause) or attempt.signalled
        if ended and not attempt.settled and attempt.cause in GUESSED:
            next_began = next((a.started for a in attempts[i + 1 :] if a.job == attempt.job and a.heard), None)
            cause = _given_by_slurm(run, attempt, next_began) or _guess(attempt, next_began is not None, cancelled)
            known[i] = replace(attempt, cause=cause, ended=(attempt.ended or attempt.heard_at) if cause else None)
    return tuple(known)


def _given_by_slurm(run: RunDir, attempt: AttemptRecord, next_began: float | None) -> str:
    """Empty if the output has no notice from this attempt's time. An output holds all attempts of a job."""
    found = ""
    for stamp, why in NOTICE.findall(last_bytes(batch_log(run, attempt.job))):
        try:
            when = time.mktime(time.strptime(stamp.decode(), "%Y-%m-%dT%H:%M:%S"))
        except (ValueError, OverflowError):
            continue
        # Whole seconds, by the clock of the node that the attempt began on.
        if when >= (attempt.started or 0) - 1 and (next_began is None or when < next_began):
            found = CAUSES.get(why.decode(errors="replace").strip(), found)
    # Our own script's requeue is one as well, but that script would not have noted a TERM.
    return found if found != "requeued" or attempt.signalled else ""


def _guess(attempt: AttemptRecord, came_back: bool, cancelled: bool) -> str:
    if attempt.signalled and attempt.cause == "lost" and came_back:
        return "preempted"
    if cancelled and not attempt.closed and attempt.cause == "preempted":
        return "cancelled"
    return attempt.cause
