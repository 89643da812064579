"""What is printed at the end of a run: how it went, its results, and what to type next."""

from __future__ import annotations

import time

from clusterdp.batch.causes import CAUSES, FAULTS
from clusterdp.operate.event_text import STOPPED_BY
from clusterdp.operate.formatting import Colour, shown_path
from clusterdp.operate.next_command import next_command_lines
from clusterdp.operate.queue import RunStatus
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.run_state import RunState
from clusterdp.operate.status import STATE_COLOURS, attempts_table, measured
from clusterdp.operate.why.failure_words import exit_words, remedy, whose
from clusterdp.operate.why.first_failure import Failure, recorded_failure
from clusterdp.operate.width import NONE
from clusterdp.wording import counted, duration

FAILED = (RunState.FAILED, RunState.GAVE_UP, RunState.STOPPED, RunState.VANISHED)


def summary(
    history: RunHistory, status: RunStatus, colour: Colour, now: float | None = None, columns: int = NONE
) -> list[str]:
    now = time.time() if now is None else now
    wanted = history.asked_to_stop or (history.last is not None and history.last.stopped_by_user)
    failure = recorded_failure(history) if status.state in FAILED and not wanted else None
    lines = [_headline(history, status, failure, colour, now)]
    if len(history.attempts) > 1:
        head, *rows = attempts_table(history.attempts[-10:], status, now, columns)
        lines += ["", colour("dim", head), *rows, ""]
    if history.step is not None:
        lines.append(f"{colour('dim', 'steps lost')}  {history.lost}")
    if status.state is not RunState.DONE and history.saved and history.step is not None:
        behind = history.step - history.saved[0]
        words = f"step {history.saved[0]}" + (f", {counted(behind, 'step')} before the end" if behind > 0 else "")
        lines.append(f"{colour('dim', 'saved')}       {words}")
    if history.metrics:
        lines.append(f"{colour('dim', 'measured')}    {measured(history.metrics)}")
    lines.append(f"{colour('dim', 'run folder')}  {shown_path(history.run.path)}")
    if failure is not None:
        lines += ["", *failure_lines(history, failure, colour)]
    return [*lines, "", "next:", *next_command_lines(history, status.state, colour, columns)]


def failure_lines(history: RunHistory, failure: Failure, colour: Colour) -> list[str]:
    """Which rank, what its log says, how to see the rest, and what to do."""
    if failure.log is None:
        return [f"No log was written. `scontrol show job {history.job}` may know more."]
    said = f" (srun: {failure.said})" if failure.said else ""
    lines = [f"{colour('red', whose(failure))}{said}, from {shown_path(failure.log)}:"]
    nothing = "  (it is empty)" if failure.rank is None else "  (it printed nothing)"
    lines += [f"  {colour('dim', '|')} {line}" for line in failure.lines] or [nothing]
    if failure.rank:  # `clusterdp logs` shows rank 0 by itself
        what = "what it printed" if failure.evidence == "hang" else "all of it"
        lines.append(f"  {what}: clusterdp logs {shown_path(history.run.path)} --rank {failure.rank}")
    if failure.known:
        lines.append(f"cause: {failure.known.cause}")
    if words := remedy(history, failure):
        lines.append(words)
    return lines


def _headline(history: RunHistory, status: RunStatus, failure: Failure | None, colour: Colour, now: float) -> str:
    state = colour(STATE_COLOURS.get(status.state, "red"), status.state.value)
    words = f"{colour('bold', history.name)}  {state}"
    if history.step is not None:
        words += f" at step {history.step}" + (f" of {history.total}" if history.total else "")
    ran = history.ran
    if ran:
        end = ran[-1].ended or now
        words += f", {counted(len(ran), 'attempt')}"
        if ran[0].started:
            words += f" in {duration(end - ran[0].started)}"
    why = _why(history, status, failure)
    return f"{words}: {why}" if why else words


def _why(history: RunHistory, status: RunStatus, failure: Failure | None) -> str:
    if status.why:
        return STOPPED_BY.get(status.why, status.why)
    cause = history.last.cause if history.last else ""
    if status.state is RunState.FAILED and history.last:
        code = (
            f" ({exit_words(history.last.exit, failure)})" if history.last.exit is not None and cause in FAULTS else ""
        )
        again = "" if cause in FAULTS else ", and not requeued"
        return CAUSES.get(cause, cause) + code + again
    if status.state is RunState.GAVE_UP:
        return "too many attempts without a newer checkpoint"
    return ""
