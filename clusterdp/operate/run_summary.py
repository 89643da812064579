"""What is said at the end of a run: how it went, what it came to, and what to type next."""

from __future__ import annotations

import time

from clusterdp.operate.event_text import CAUSES, STOPPED_BY, steps
from clusterdp.operate.failure import LINES, Failure, find_failure
from clusterdp.operate.formatting import Ink, shown, span
from clusterdp.operate.missing_file import left_out
from clusterdp.operate.next_command import advice_lines
from clusterdp.operate.queue import Standing
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.run_state import Verdict
from clusterdp.operate.status import INK, attempts_table, measured

FAILED = (Verdict.FAILED, Verdict.GAVE_UP, Verdict.STOPPED, Verdict.VANISHED)


def summary(history: RunHistory, standing: Standing, ink: Ink, now: float | None = None) -> list[str]:
    now = time.time() if now is None else now
    lines = [_headline(history, standing, ink, now)]
    if len(history.attempts) > 1:
        head, *rows = attempts_table(history.attempts[-10:], standing, now)
        lines += ["", ink("dim", head), *rows, ""]
    if history.step is not None:
        lines.append(f"{ink('dim', 'steps lost')}  {history.lost}")
    if standing.verdict is not Verdict.DONE and history.saved and history.step is not None:
        behind = history.step - history.saved[0]
        words = f"step {history.saved[0]}" + (f", {steps(behind)} before the end" if behind > 0 else "")
        lines.append(f"{ink('dim', 'saved')}       {words}")
    if history.metrics:
        lines.append(f"{ink('dim', 'measured')}    {measured(history.metrics)}")
    lines.append(f"{ink('dim', 'run folder')}  {shown(history.run.path)}")
    if standing.verdict in FAILED:
        lines += ["", *failure_lines(history, find_failure(history), ink)]
    return [*lines, "", "next:", *advice_lines(history, standing.verdict, ink)]


def failure_lines(history: RunHistory, failure: Failure, ink: Ink) -> list[str]:
    """Which rank, the end of its log, and how to see the rest."""
    if failure.log is None:
        return [f"No log was written. `scontrol show job {history.job}` may know more."]
    whose = f"rank {failure.rank}" if failure.rank is not None else "the batch script"
    said = f" (srun: {failure.said})" if failure.said else ""
    lines = [f"{ink('red', whose)}{said}, the last {LINES} lines of {shown(failure.log)}:"]
    lines += [f"  {ink('dim', '|')} {line}" for line in failure.lines] or ["  (it is empty)"]
    if failure.rank:  # `clusterdp logs` shows rank 0 by itself
        lines.append(f"  all of it: clusterdp logs {shown(history.run.path)} --rank {failure.rank}")
    if missed := left_out(history, failure):
        lines.append(missed)
    return lines


def _headline(history: RunHistory, standing: Standing, ink: Ink, now: float) -> str:
    verdict = ink(INK.get(standing.verdict, "red"), standing.verdict.value)
    words = f"{ink('bold', history.name)}  {verdict}"
    if history.step is not None:
        words += f" at step {history.step}" + (f" of {history.total}" if history.total else "")
    ran = history.ran
    if ran:
        end = ran[-1].ended or now
        words += f", {len(ran)} attempt{'s' if len(ran) > 1 else ''}"
        if ran[0].started:
            words += f" in {span(end - ran[0].started)}"
    why = _why(history, standing)
    return f"{words}: {why}" if why else words


def _why(history: RunHistory, standing: Standing) -> str:
    if standing.why:
        return STOPPED_BY.get(standing.why, standing.why)
    cause = history.last.cause if history.last else ""
    if standing.verdict is Verdict.FAILED and history.last:
        code = f" (exit {history.last.exit})" if history.last.exit is not None and cause == "crash" else ""
        again = "" if cause == "crash" else ", and not requeued"
        return CAUSES.get(cause, cause) + code + again
    if standing.verdict is Verdict.GAVE_UP:
        return "too many attempts without a newer checkpoint"
    return ""
