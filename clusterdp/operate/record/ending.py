"""Describes the end of an attempt or a job in words."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence

from clusterdp.batch.files.causes import CAUSES, FAULTS
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.wording import counted

STOPPED_BY = {
    "claim": "another attempt has taken over the run folder",
    "entry": "it cannot run as it is: a mistake in its config, its code or what is installed",
}
# Causes that are printed with the step at which the attempt ended
AT_A_STEP = FAULTS | {"preempted", "timeout", "signal", "asked", "grown", "cancelled", "requeued", "node-lost"}

# The exit code of srun after it has ended all ranks because one rank failed. That rank's own code is in the log: see
# `why`.
ENDED_BY_SRUN = 143
# The end of a job that left no record, by Slurm's final state of the job
ENDED_AS = {
    "CANCELLED": (RunState.CANCELLED, "by scancel, outside clusterdp"),
    "COMPLETED": (RunState.FAILED, "its script ended without a record"),
    "FAILED": (RunState.FAILED, "its script failed before it could say why"),
    "TIMEOUT": (RunState.FAILED, "killed at its time limit, not requeued"),
    "NODE_FAIL": (RunState.FAILED, "a node failed, and Slurm did not requeue it"),
    "PREEMPTED": (RunState.FAILED, "preempted, and Slurm did not requeue it"),
    "OUT_OF_MEMORY": (RunState.FAILED, "out of memory: see resources.mem"),
    "DEADLINE": (RunState.FAILED, "its deadline has passed"),
    "BOOT_FAIL": (RunState.FAILED, "its nodes did not boot"),
}
# Slurm's reasons for a job whose script was ended by a signal: the name until 23.02, and the name since 23.02
OF_A_SIGNAL = ("JobLaunchFailure", "RaisedSignal")


def ending_text(attempt: AttemptHistory) -> str:
    """Returns the end of an attempt as text: `preempted at step 120, saved` or `crashed (exit 1), 12 steps lost`."""
    if not attempt.heard:
        return "nothing on record: see the job's output"
    if not attempt.cause:
        return ""
    if attempt.cause == "done" and not attempt.ran:
        return "found the run done"
    if (attempt.cause in FAULTS or attempt.cause == "gave-up") and not attempt.ran:
        return "found the run over"
    words = CAUSES.get(attempt.cause, attempt.cause)
    if attempt.stopped_by_user:
        words = f"stopped by {attempt.why}"
    elif attempt.cause in ("stopped", "gave-up") and attempt.why:
        words += f": {STOPPED_BY.get(attempt.why, attempt.why)}"
    if attempt.cause == "overtaken":
        words += f" {attempt.why}"
    shown = how_it_failed(attempt.exit, attempt.failed_error) if attempt.cause in FAULTS else ""
    words += "" if attempt.failed_error else shown
    if attempt.last_step is not None and (attempt.cause in AT_A_STEP or attempt.stopped_by_user):
        words += f" at step {attempt.last_step}"
        if attempt.saved == attempt.last_step:
            words += ", saved"
    if attempt.unsaved and attempt.why not in STOPPED_BY:
        words += f", not saved: {textwrap.shorten(attempt.unsaved, 120, placeholder=' ...')}"
    if attempt.lost:
        words += f", {counted(attempt.lost, 'step')} lost"
    return words + (shown if attempt.failed_error else "")


def not_repeated(attempts: Sequence[AttemptHistory]) -> list[tuple[str, str]]:
    """Returns, as a fact (key, words), the newest attempt whose first steps do not repeat those of the attempt before;
    an empty list if there is none."""
    other = [attempt for attempt in attempts if attempt.verdict == "other"]
    words = [
        f"attempt {attempt.number}, from step {attempt.restored}, not as before: {attempt.differs}"
        for attempt in other[-1:]
    ]
    return [("resume", word) for word in words]


def how_it_failed(exit_code: object, error: str) -> str:
    """Returns the end of a message about a failure: the error, or, if it is unknown, the exit code."""
    if error:
        return f": {textwrap.shorten(error, 120, placeholder=' ...')}"
    return f" (exit {exit_code})" if exit_code not in (None, ENDED_BY_SRUN) else ""


def with_reasons(attempts: tuple[AttemptHistory, ...]) -> tuple[AttemptHistory, ...]:
    """Returns the attempts. For each attempt whose end the batch script did not explain, `why` is added."""
    told = list(attempts)
    for i, attempt in enumerate(attempts):
        if attempt.cause == "gave-up" and not attempt.why:
            idle = len(list(itertools.takewhile(lambda a: a.saved is None, reversed(attempts[:i]))))
            told[i] = attempt._replace(why=f"{counted(idle, 'attempt')} in a row without a new checkpoint")
        if attempt.cause == "unknown":
            all_saved = attempt.saved is not None and attempt.saved == attempt.last_step
            safe = "nothing is lost" if all_saved else "what was saved is safe"
            why = f"Slurm's controller did not answer at the stop; {safe}; `clusterdp resume` goes on"
            told[i] = attempt._replace(why=why)
    return tuple(told)


def ended_as(state: str, reason: str = "", *, began: bool = False) -> tuple[RunState, str]:
    """Returns the state of a run whose job left no record, and the reason in words. Both are derived from the state and
    the reason that Slurm finally gave the job. `began` is True if the job's program had begun."""
    found, why = ENDED_AS.get(state, (RunState.FAILED, f"Slurm ended it as {state}"))
    if state == "FAILED" and began and reason.startswith(OF_A_SIGNAL):
        why = "its batch script was killed, and Slurm has ended the ranks"
    return found, why
