"""The notice that slurmstepd writes into a job's output when it ends an attempt: the only record of who asked for the
end.

    slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO PREEMPTION ***

To the ranks, a TERM from scancel, from a preemption and from a requeue look the same. An attempt that is killed at once
leaves no record of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterdp.batch.causes import notices
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.log_files import batch_log
from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import last_bytes

GUESSED = frozenset(
    {"", "lost", "preempted", "signal"}
)  # causes that the next attempt wrote, or that follow from a TERM


def with_notices(run: RunDir, attempts: Sequence[AttemptHistory], cancelled: bool) -> tuple[AttemptHistory, ...]:
    """The attempts. A cause that was only guessed is replaced by the one that Slurm gave."""
    known = list(attempts)
    outputs: dict[str, list[tuple[float, str]]] = {}  # by job: an output holds all its attempts
    for i, attempt in enumerate(known):
        ended = bool(attempt.cause) or attempt.signalled or attempt.exited
        if ended and not attempt.settled and attempt.cause in GUESSED:
            if attempt.job not in outputs:
                outputs[attempt.job] = _notices(batch_log(run, attempt.job))
            next_began = next((a.started for a in attempts[i + 1 :] if a.job == attempt.job and a.heard), None)
            cause = _given_by_slurm(attempt, next_began, outputs[attempt.job])
            cause = cause or _guess(attempt, next_began is not None, cancelled)
            known[i] = replace(attempt, cause=cause, ended=(attempt.ended or attempt.heard_at) if cause else None)
    return tuple(known)


def ended_by_slurm(run: RunDir, attempts: Sequence[AttemptHistory]) -> dict[str, float]:
    """When Slurm ended attempts, by their names, as far as there is a notice of it."""
    outputs = {job: _notices(batch_log(run, job)) for job in {attempt.job for attempt in attempts}}
    found = {}
    for i, attempt in enumerate(attempts):
        next_began = next((a.started for a in attempts[i + 1 :] if a.job == attempt.job and a.heard), None)
        begin, end = (attempt.started or 0) - 1, next_began or float("inf")
        if at := [when for when, _ in outputs[attempt.job] if begin <= when < end]:
            found[attempt.name] = at[0]
    return found


def _notices(output: Path) -> list[tuple[float, str]]:
    """(when, cause), in the order in which they were written."""
    found = notices(last_bytes(output).decode(errors="replace"))
    return [(notice.at, notice.cause) for notice in found if notice.cause and notice.at is not None]


def _given_by_slurm(attempt: AttemptHistory, next_began: float | None, notices: Sequence[tuple[float, str]]) -> str:
    """Empty if there is no notice from this attempt's time. It is in whole seconds, by the clock of the first node."""
    begin, end = (attempt.started or 0) - 1, next_began or float("inf")
    cause = next((cause for when, cause in reversed(notices) if begin <= when < end), "")
    # Our own script's requeue is one as well, but that script would not have noted a TERM.
    return cause if cause != "requeued" or attempt.signalled else ""


def _guess(attempt: AttemptHistory, came_back: bool, cancelled: bool) -> str:
    if attempt.signalled and attempt.cause == "lost" and came_back:
        return "preempted"
    if cancelled and not attempt.closed and attempt.cause in ("preempted", "signal"):
        return "cancelled"
    return attempt.cause
