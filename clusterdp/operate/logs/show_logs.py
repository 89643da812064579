"""`clusterdp logs`: what the ranks printed, whole or as it comes, across attempts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.operate.follow import Pace
from clusterdp.operate.formatting import clock
from clusterdp.operate.log_files import rank_logs
from clusterdp.operate.logs.batch_end import print_batch_end
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.chosen import announcement, attempts_of, chosen_logs
from clusterdp.operate.logs.errors import BATCH, ErrorFinder, ErrorReport
from clusterdp.operate.logs.follow_logs import follow_logs
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.starts import begin
from clusterdp.operate.logs.timed_log import TimedLog, merged
from clusterdp.operate.run_history import RunHistory, read_history
from clusterdp.operate.run_state import BROKEN_PIPE, INTERRUPTED
from clusterdp.operate.terminal import for_logs
from clusterdp.rundir import RunDir


def show_logs(run: RunDir, choice: Choice | None = None, out: TextIO | None = None, pace: Pace | None = None) -> int:
    """Returns an exit code. RunError if there is nothing to show, or no such rank or attempt."""
    choice = choice or Choice()
    out = for_logs(out or sys.stdout)
    printer = Printer(out, choice.labelled)
    try:
        try:
            if choice.follow:
                follow_logs(run, choice, printer, pace or Pace())
            else:
                _print(read_history(run), choice, printer)
        finally:
            printer.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone. Python would complain once more when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return BROKEN_PIPE
    return 0


def _print(history: RunHistory, choice: Choice, printer: Printer) -> None:
    seen: set[Path] = set()
    attempts = attempts_of(history, choice)
    found = 0
    for attempt in attempts:
        if choice.attempt == "all":
            printer.notice(announcement(attempt))
        logs = chosen_logs(history, attempt, choice, seen)
        printer.expect(log.rank for log in logs)
        begin([log for log in logs if log.rank != BATCH], choice, printer)
        if choice.errors:
            found += _print_errors(history, attempt, logs, choice, printer)
        else:
            _print_lines(logs, printer)
    if choice.errors and attempts:
        if not found:
            printer.notice(f"nothing looks like an error in {_what(choice, attempts)}")
        return
    with_logs = next((a for a in reversed(attempts) if rank_logs(history.run.attempt(a.name).logs)), None)
    print_batch_end(history, choice, printer, with_logs)
    if choice.since is not None and not printer.printed:
        printer.notice(f"nothing was printed since {clock(choice.since)}")


def _print_lines(logs: Sequence[TimedLog], printer: Printer) -> None:
    if printer.labelled:
        printer.lines(merged(logs, final=True))
        printer.end_line()
        return
    for log in logs:
        for text in log.text(final=True):
            printer.text(text, log.rank)


def _print_errors(
    history: RunHistory, attempt: AttemptHistory, logs: Sequence[TimedLog], choice: Choice, printer: Printer
) -> int:
    report = ErrorReport(batch_name(history, attempt))
    for log in logs:
        report.add(ErrorFinder(log).errors(final=True))
    return report.print(printer, choice.last)


def batch_name(history: RunHistory, attempt: AttemptHistory) -> str:
    """The attempts of a job share its batch script's log."""
    numbers = [a.number for a in history.attempts if a.job == attempt.job]
    return "batch script" if len(numbers) < 2 else f"batch script (attempts {numbers[0]}-{numbers[-1]})"


def _what(choice: Choice, attempts: Sequence[AttemptHistory]) -> str:
    if choice.attempt == "all":
        return "any attempt"
    others = "; --attempt all looks at all" if attempts[-1].number > 1 else ""
    return f"attempt {attempts[-1].number}{others}"
