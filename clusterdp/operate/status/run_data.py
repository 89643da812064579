"""What --json says of a run. Names, types and units of all its keys are in json.schema.json, for each verb that has it.

`state` is that of the run, as people see it, and `slurm_state` squeue's. Times end in _at (Unix time, in seconds),
durations in _s. What is not known is null.
"""

from __future__ import annotations

from typing import Any

from clusterdp.operate.queue.run_status import RunStatus
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.note import read_note
from clusterdp.operate.record.run_history import RunHistory, newest
from clusterdp.operate.record.standstill import hang_of, stragglers_of
from clusterdp.rundir.lenient_reads import time_of


def as_data(history: RunHistory, status: RunStatus) -> dict[str, Any]:
    """For `clusterdp status`."""
    last = newest(history.attempts)
    return {
        **in_brief(history, status),
        "hang": _hang_data(history, last) if last else None,
        "stragglers": stragglers_of(history, last) if last else [],
        "attempts": [_attempt_data(attempt) for attempt in history.attempts],
    }


def in_brief(history: RunHistory, status: RunStatus) -> dict[str, Any]:
    """The part of it that `clusterdp list` has, too."""
    row, (saved_step, saved_at) = status.row, history.saved or (None, None)
    return {
        "name": history.name,
        "run": str(history.run.path),
        "state": status.state.value,
        "why": status.why,
        "over": status.state.over,
        "job": history.job,
        "jobs": list(history.jobs),
        "slurm_state": row.state if row else None,
        "slurm_reason": row.reason if row else None,
        "nodes": row.nodes if row else None,
        "submitted_at": history.submitted,
        "step": history.step,
        "total": history.total,
        "phase": history.phase,
        "saved_step": saved_step,
        "saved_at": saved_at,
        "steps_lost": history.lost,
        "metrics": history.metrics,
        "measured_at": history.measured_at,
        "cancelled": history.cancelled,
        "asked_to_stop": history.asked_to_stop,
        "note": read_note(history.run),
    }


def _hang_data(history: RunHistory, last: AttemptHistory) -> dict[str, Any] | None:
    told = hang_of(history, last)
    keys = ("reason", "ranks", "nodes", "step", "phase")
    return told and {"told_at": time_of(told), **{key: told.get(key) for key in keys}}


def _attempt_data(attempt: AttemptHistory) -> dict[str, Any]:
    return {
        "name": attempt.name,
        "number": attempt.number,
        "ran": attempt.ran,
        "cause": attempt.cause or None,
        "why": attempt.why,
        "exit": attempt.exit,
        "outcome": attempt.outcome or None,
        "requeued": attempt.requeued,
        "started_at": attempt.started,
        "ended_at": attempt.ended,
        "heard_at": attempt.heard_at,
        "printed_at": attempt.printed_at,
        "nodes": attempt.nodes,
        "avoids": list(attempt.avoid),
        "first_step": attempt.first_step,
        "last_step": attempt.last_step,
        "restored_step": attempt.restored,
        "saved_step": attempt.saved,
        "saved_at": attempt.saved_at,
        "steps_lost": attempt.lost,
        "steps_per_s": attempt.rate,
        "total": attempt.total,
        "phase": attempt.phase,
        "metrics": attempt.metrics,
        "measured_at": attempt.measured_at,
    }
