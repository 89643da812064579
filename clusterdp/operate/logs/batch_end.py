"""The end of the batch script's log. It is all there is if no rank began; else it is printed if something failed."""

from __future__ import annotations

from clusterdp.errors import RunError
from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.operate.formatting import shown_path
from clusterdp.operate.log_files import batch_log
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.run_history import RunHistory, check_read
from clusterdp.operate.why.first_failure import recorded_failure
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.tail import last_lines

LINES = 30
FINE = frozenset({"", "done", "preempted", "timeout", "requeued"})  # causes that need no word of the batch script


def print_batch_end(history: RunHistory, choice: Choice, printer: Printer, attempt: AttemptHistory | None) -> None:
    """`attempt`: of which the ranks' logs were printed; None if there are none. RunError if there is nothing at all."""
    shown = attempt or history.last
    batch = batch_log(history.run, shown.job if shown else history.job)
    if attempt is None and not batch.exists():
        check_read(history)
        begun = "nothing was printed yet" if shown else "no attempt has begun"
        raise RunError(f"{shown_path(history.run.path)}: no logs, for {begun}. `-f` waits for them.")
    if choice.since is not None and (modified(batch) or 0.0) < choice.since:
        return
    if attempt is not None:
        if attempt.cause in FINE:
            return
        if batch.exists():
            printer.notice(f"the batch script: {shown_path(batch)}")
    for line in last_lines(batch, LINES if choice.last is None else min(LINES, choice.last)):
        printer.own(line)
    failure = recorded_failure(history) if shown is history.last else None
    if failure is not None and failure.rank is not None and not choice.wants(failure.rank):
        command = f"clusterdp logs {shown_path(history.run.path)} --rank {failure.rank}"
        printer.notice(f"rank {failure.rank} failed first: {command}")
