"""Events in words: one line for each event that a person wants to know of."""

from __future__ import annotations

from clusterdp.batch.causes import CAUSES, FAULTS
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record
from clusterdp.wording import counted

STOPPED_BY = {
    "claim": "another attempt has taken over the run folder",
    "entry": "it cannot run as it is: a mistake in its config, its code or what is installed",
}
# Of these the step at which they came is said.
AT_A_STEP = FAULTS | {"preempted", "timeout", "signal", "asked", "cancelled", "requeued", "node-lost"}

# With this srun ends when it has ended the other ranks because of one. That one's own code is in the log: `why` has it.
ENDED_BY_SRUN = 143


def event_line(event: Record, history: RunHistory) -> str | None:
    """The line of an event. None for periodic saves, and for an event whose cause another event tells better."""
    kind, job = event.get("event"), event.get("job")
    if kind == "saved":
        return None
    attempt = _find(history, event.get("attempt"))
    number = attempt.number if attempt else "?"
    if kind in ("submitted", "linked"):
        return f"submitted: job {job}" + (", which goes on when this one ends" if kind == "linked" else "")
    if kind == "started":
        return f"attempt {number} started on {event.get('nodes') or event.get('host') or 'its nodes'} (job {job})"
    if kind == "restored":
        return f"attempt {number} resumed at step {event.get('step')}"
    if kind == "signal" and event.get("step") is not None:  # the ranks' own; the batch shell's adds nothing
        return f"{event.get('name')} at step {event['step']}: all ranks stop together and save"
    if kind == "requeued":
        return _requeued(event, history)
    if kind == "failed":
        return f"attempt {number} {_failed(event, attempt)}"
    if kind in ("hang", "hang-ended", "preflight", "save-failed"):
        return _trouble(event, number)
    if kind == "rehearsal":
        return f"rehearsal: preempting job {job} at step {event.get('step')}, to see it come back"
    if kind == "trying":
        return f"trying {event.get('what')}"
    if kind == "finished" and event.get("cause") is None:  # rank 0's; the batch script's comes right after
        return f"finished at step {event.get('step')}"
    if kind == "stop-asked":
        return f"job {job} asked to save and stop"
    if kind == "cancelled" and event.get("cause") is None:  # `clusterdp cancel`; the batch script's comes after
        return f"cancelled job {job}" if job else "cancelled"
    return None


def _trouble(event: Record, number: object) -> str | None:
    if event.get("event") == "preflight":
        failures = event.get("failures")
        said = "; ".join(map(str, failures)) if isinstance(failures, list) else ""
        return f"attempt {number} failed the preflight: {said}" if said else None
    if event.get("event") == "hang":
        return f"attempt {number} makes no progress: {event.get('reason')}"
    if event.get("event") == "hang-ended":
        return f"attempt {number} makes progress again"
    return f"a checkpoint was not saved at step {event.get('step')}: {event.get('error')}"


def ending_text(attempt: AttemptHistory) -> str:
    """How an attempt ended: `preempted at step 120, saved`, `crashed (exit 1), 12 steps lost`."""
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
    if attempt.exit not in (None, ENDED_BY_SRUN) and attempt.cause in FAULTS:
        words += f" (exit {attempt.exit})"
    if attempt.last_step is not None and (attempt.cause in AT_A_STEP or attempt.stopped_by_user):
        words += f" at step {attempt.last_step}"
        if attempt.saved == attempt.last_step:
            words += ", saved"
    if attempt.lost:
        words += f", {counted(attempt.lost, 'step')} lost"
    return words


def _find(history: RunHistory, name: object) -> AttemptHistory | None:
    return next((attempt for attempt in history.attempts if attempt.name == name), None)


def _requeued(event: Record, history: RunHistory) -> str | None:
    attempt = _find(history, event.get("of") or event.get("attempt"))
    word = str((attempt and attempt.cause) or event.get("cause"))  # what Slurm says counts more than a guess
    cause = CAUSES.get(word, word)
    if word == "done":  # the ranks have recorded it; Slurm requeued the job afterwards
        return None
    if attempt is not None and word in ("overtaken", "stopped"):
        return f"attempt {attempt.number} {ending_text(attempt)}"
    again = [] if word == "requeued" else ["requeued"]
    if attempt is None or attempt.last_step is None:
        kept, at = [], ""
    elif attempt.saved == attempt.last_step:
        kept, at = ["saved"], f" at step {attempt.last_step}"
    else:
        kept = [f"step {attempt.saved} is saved" if attempt.saved is not None else "nothing saved yet"]
        at = f" at step {attempt.last_step}"
    what = ", ".join([*kept, *again])
    whose = f"attempt {attempt.number} " if attempt is not None else ""
    return f"{whose}{cause}{at}" + (f": {what}" if what else "")


def _failed(event: Record, attempt: AttemptHistory | None) -> str:
    cause, exit_code = event.get("cause"), event.get("exit")
    if attempt is not None and attempt.cause == "overtaken":
        return f"superseded {attempt.why}"
    if cause and attempt is not None and attempt.settled and attempt.cause == "unknown":
        cause = attempt.cause
    if attempt is not None and attempt.stopped_by_user:
        return ending_text(attempt)
    reason = event.get("reason") or (attempt.why if attempt is not None and cause == "gave-up" else "")
    words = CAUSES.get(str(cause), str(cause)) if cause else "failed"
    if reason:
        words += f", {STOPPED_BY.get(str(reason), str(reason))}"
    return words + (f" (exit {exit_code})" if exit_code not in (None, ENDED_BY_SRUN) else "")
