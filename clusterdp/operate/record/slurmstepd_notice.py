"""Reads the notice that slurmstepd writes into a job's output when Slurm ends an attempt. Only this notice has the
reason.

    slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO PREEMPTION ***

The ranks cannot distinguish whether a TERM comes from scancel, a preemption or a requeue. An attempt that is killed at
once leaves no record of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clusterdp.batch.files.causes import notices
from clusterdp.batch.files.texts import LAST
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.log_files import batch_log
from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import last_bytes

GUESSED = frozenset(
    {"", "lost", "preempted", "signal"}
)  # causes that may be wrong: the next attempt guessed them, or they follow from a TERM


def with_notices(run: RunDir, attempts: Sequence[AttemptHistory], cancelled: bool) -> tuple[AttemptHistory, ...]:
    """Returns the attempts with corrected causes: the cause in Slurm's notice replaces a cause that was only
    guessed."""
    known = list(attempts)
    outputs: dict[str, list[tuple[float, str]]] = {}  # job -> its notices; all attempts of a job share one output
    for i, attempt in enumerate(known):
        ended = bool(attempt.cause) or attempt.signalled or attempt.exited
        if ended and not attempt.settled and attempt.cause in GUESSED:
            if attempt.job not in outputs:
                outputs[attempt.job] = _notices(batch_log(run, attempt.job))
            next_began = next((a.started for a in attempts[i + 1 :] if a.job == attempt.job and a.heard), None)
            cause = _given_by_slurm(attempt, next_began, outputs[attempt.job])
            cause = cause or _guess(attempt, next_began is not None, cancelled)
            known[i] = attempt._replace(cause=cause, ended=(attempt.ended or attempt.heard_at) if cause else None)
    return tuple(known)


def ended_by_slurm(run: RunDir, attempts: Sequence[AttemptHistory]) -> dict[str, float]:
    """Returns the time at which Slurm ended an attempt, for each attempt with a notice."""
    outputs = {job: _notices(batch_log(run, job)) for job in {attempt.job for attempt in attempts}}
    found = {}
    for i, attempt in enumerate(attempts):
        next_began = next((a.started for a in attempts[i + 1 :] if a.job == attempt.job and a.heard), None)
        begin, end = (attempt.started or 0) - 1, next_began or float("inf")
        if at := [when for when, _ in outputs[attempt.job] if begin <= when < end]:
            found[attempt.name] = at[0]
    return found


def _notices(output: Path) -> list[tuple[float, str]]:
    """Returns pairs (time, cause) for the notices in a batch script's output, in their order."""
    found = notices(last_bytes(output, LAST).decode(errors="replace"))
    return [(notice.at, notice.cause) for notice in found if notice.cause and notice.at is not None]


def _given_by_slurm(attempt: AttemptHistory, next_began: float | None, notices: Sequence[tuple[float, str]]) -> str:
    """Returns the cause in Slurm's notice; empty if no notice is from the time of this attempt. A notice's time is in
    whole seconds, by the clock of the first node."""
    begin, end = (attempt.started or 0) - 1, next_began or float("inf")
    cause = next((cause for when, cause in reversed(notices) if begin <= when < end), "")
    # A requeue by the batch script itself also causes a notice, but in that case the script has recorded no TERM.
    return cause if cause != "requeued" or attempt.signalled else ""


def _guess(attempt: AttemptHistory, came_back: bool, cancelled: bool) -> str:
    if attempt.signalled and attempt.cause == "lost" and came_back:
        return "preempted"
    if cancelled and not attempt.closed and attempt.cause in ("preempted", "signal"):
        return "cancelled"
    return attempt.cause
