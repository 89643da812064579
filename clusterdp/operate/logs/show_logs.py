"""`clusterdp logs`: prints the output of the ranks: either the logs so far, or with -f also each new line, over all
later attempts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from clusterdp.batch.files.rank_logs import log_files
from clusterdp.errors import RunError
from clusterdp.operate.logs.choice import Choice, named
from clusterdp.operate.logs.chosen import (
    announcement,
    attempt_of,
    attempts_of,
    batch_script_log,
    chosen_logs,
    logs_in,
    of_one_rank,
)
from clusterdp.operate.logs.errors import BATCH, ErrorFinder, ErrorReport
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.rank_log import RankLog, same_file
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.output.terminal import for_logs
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.log_files import batch_log
from clusterdp.operate.record.run_history import RunHistory, check_read, read_history
from clusterdp.operate.record.run_state import BROKEN_PIPE, INTERRUPTED
from clusterdp.operate.status.follow import Pace, follow
from clusterdp.operate.why.first_failure import recorded_failure
from clusterdp.plainfile import open_plain
from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import last_lines

ASKED_A_SECOND = 1000  # stat() calls a second, for all files without new text together
OPENS_A_SECOND = 100  # open() calls a second, for all files without new text together
LIST_EVERY_S = 2.0
LINES = 30
FINE = frozenset({"", "done", "preempted", "timeout", "requeued"})  # the batch script's log is not shown after these
FEWEST = 10  # least number of lines of each log, if -n is not given


def show_logs(run: RunDir, choice: Choice | None = None, out: TextIO | None = None, pace: Pace | None = None) -> int:
    """Prints the logs, and returns the exit code. Raises RunError if the run has no logs, or lacks a rank or attempt
    that the user named."""
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
        # The reader has closed the pipe. Python would print an error at the exit, when the interpreter flushes stdout.
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
        ranks = [log for log in logs if log.file.number != BATCH]
        if not choice.errors:
            printer.expect(rank for log in ranks for rank in log.ranks())
        begin(ranks, choice, printer)
        if choice.errors:
            found += _print_errors(history, attempt, logs, choice, printer)
        else:
            _print_lines(logs, printer, final=True)
            if printer.labelled:
                printer.end_line()
    if choice.errors and attempts:
        if not found:
            printer.notice(f"nothing looks like an error in {_what(choice, attempts)}")
        return
    with_logs = next((a for a in reversed(attempts) if log_files(str(history.run.attempt(a.name).logs))), None)
    print_batch_end(history, choice, printer, with_logs)


def _print_lines(logs: Sequence[RankLog], printer: Printer, final: bool) -> None:
    for log in logs:
        for rank, text in log.lines(final) if printer.labelled else log.text(final):
            printer.text(text, rank)


def _print_errors(
    history: RunHistory, attempt: AttemptHistory, logs: Sequence[RankLog], choice: Choice, printer: Printer
) -> int:
    report = ErrorReport(batch_name(history, attempt))
    for log in logs:
        report.add(ErrorFinder(log).errors(final=True))
    return report.print(printer, choice.last)


def batch_name(history: RunHistory, attempt: AttemptHistory) -> str:
    """Returns the label of the batch script's log, which all attempts of a job share."""
    numbers = [a.number for a in history.attempts if a.job == attempt.job]
    return "batch script" if len(numbers) < 2 else f"batch script (attempts {numbers[0]}-{numbers[-1]})"


def _what(choice: Choice, attempts: Sequence[AttemptHistory]) -> str:
    if choice.attempt == "all":
        return "any attempt"
    others = "; --attempt all looks at all" if attempts[-1].number > 1 else ""
    return f"attempt {attempts[-1].number}{others}"


def follow_logs(run: RunDir, choice: Choice, printer: Printer, pace: Pace) -> None:
    """Prints the lines of logs as the ranks write them. Lines of several ranks are printed by rank within one poll. A
    notice announces each new attempt."""
    following = _Following(run, choice, printer, pace)
    for update in follow(run, pace):
        for attempt in _to_show(update.history, choice, following.begun):
            ended = choice.attempt not in (None, "all") and bool(attempt.cause)
            following.look(attempt, over=update.over or ended)
            printer.flush()
            if ended or (update.over and choice.attempt not in (None, "all")):
                return
    last = update.history.last
    if printer.labelled:
        printer.end_line()
    if not choice.errors:
        print_batch_end(update.history, choice, printer, last if following.files else None)


def _to_show(history: RunHistory, choice: Choice, begun: list[str]) -> tuple[AttemptHistory, ...]:
    """Returns the attempt that was shown last, and all later attempts. The first call returns the newest attempt, or
    the attempts that the user chose."""
    if choice.attempt not in (None, "all"):
        attempt = attempt_of(history, choice.attempt, patient=True)
        return (attempt,) if attempt else ()
    first = 0 if choice.attempt == "all" else -1
    at = next((i for i, attempt in enumerate(history.attempts) if begun and attempt.name == begun[-1]), first)
    return history.attempts[at:]


class _Following:
    """The state of follow_logs(). `begun` has the names of the attempts that were shown. `files` has all logs so far,
    because with submitit the attempts of a job share one file."""

    def __init__(self, run: RunDir, choice: Choice, printer: Printer, pace: Pace):
        self.run, self.choice, self.printer = run, choice, printer
        self.begun: list[str] = []
        self.files: dict[Path, RankLog] = {}
        self._logs: dict[str, RankLog] = {}  # path -> log of the current attempt
        self._finders: dict[RankLog, ErrorFinder] = {}
        self._grown = GrownFiles(pace.poll_s, pace.clock)
        self._folder = NewNames(pace.clock)

    def look(self, attempt: AttemptHistory, over: bool) -> None:
        first = not self.begun
        if attempt.name not in self.begun:
            self._drain(final=True)
            self._logs = {}
            if not first or self.choice.attempt == "all":
                self.printer.notice(announcement(attempt))
            self.begun.append(attempt.name)
        new = self._new_logs(attempt)
        if first and new:
            begin(new, self.choice, self.printer)
        self._drain(final=over)

    def _new_logs(self, attempt: AttemptHistory) -> list[RankLog]:
        choice, new = self.choice, []
        folder = self.run.attempt(attempt.name).logs
        if not self._folder.may_be_in(folder):
            return []
        there = logs_in(folder, choice)
        there = of_one_rank(there, choice) or [log for log in there if log.file.is_shared or log.ranks()]
        if choice.errors and choice.ranks is None:
            there.append(batch_script_log(self.run, attempt.job))
        for log in there:
            if log.file.path in self._logs:
                continue
            file = same_file(log.path)
            if file not in self.files:
                self.files[file] = log
                if log.file.number != BATCH:
                    new.append(log)
            self._logs[log.file.path] = self.files[file]
        self.printer.expect(rank for log in new for rank in log.ranks())
        return new

    def _drain(self, final: bool) -> None:
        logs = [log for path, log in self._logs.items() if self._may_have_news(path, log) or final]
        if self.choice.errors:
            report = ErrorReport()
            for log in logs:
                report.add(self._finder(log).errors(final))
            report.print(self.printer)
        else:
            _print_lines(logs, self.printer, final)

    def _may_have_news(self, path: str, log: RankLog) -> bool:
        return self._grown.grown(path) or (self.choice.errors and self._finder(log).waits)

    def _finder(self, log: RankLog) -> ErrorFinder:
        if log not in self._finders:
            self._finders[log] = ErrorFinder(log)
        return self._finders[log]


class _Seen:
    def __init__(self) -> None:
        self.size = 0
        self.pause = 0.0  # seconds between two calls of open() for the file
        self.open_at = 0.0
        self.ask_at = 0.0


class GrownFiles:
    """Finds files whose size has changed. `poll_s` is the time in seconds between two polls."""

    def __init__(self, poll_s: float, clock: Callable[[], float]):
        self.poll_s, self.clock = poll_s, clock
        self._seen: dict[str, _Seen] = {}

    def grown(self, path: str) -> bool:
        """Returns whether the file's size has changed since the last poll. True for a new file, unless the file is
        empty."""
        seen = self._seen.get(path)
        if seen is None:
            seen = self._seen[path] = _Seen()
            seen.pause = self.poll_s
        now = self.clock()
        if now < seen.ask_at:
            return False
        try:
            size = os.stat(path).st_size
            if size == seen.size and now >= seen.open_at:
                size = _size_by_open(path)
                seen.pause = min(2 * seen.pause, max(self.poll_s, len(self._seen) / OPENS_A_SECOND))
                seen.open_at = now + seen.pause
        except OSError:
            return False
        if size == seen.size:
            seen.ask_at = now + min(seen.pause, len(self._seen) / ASKED_A_SECOND) - self.poll_s / 2
            return False
        seen.size, seen.pause, seen.open_at = size, self.poll_s, now + self.poll_s
        return True


class NewNames:
    """Finds whether a folder may have new names since the last poll."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self._seen: tuple[Path, int] | None = None
        self._due = 0.0

    def may_be_in(self, folder: Path) -> bool:
        """Returns True if the folder's mtime has changed, or if the last True was LIST_EVERY_S ago. The second rule is
        needed because NFS may show an old mtime, and a coarse mtime may miss a change."""
        try:
            seen = folder, os.stat(folder).st_mtime_ns
        except OSError:
            return False
        now = self.clock()
        if seen == self._seen and now < self._due:
            return False
        self._seen, self._due = seen, now + LIST_EVERY_S
        return True


def _size_by_open(path: str) -> int:
    file = open_plain(path)
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)


def print_batch_end(history: RunHistory, choice: Choice, printer: Printer, attempt: AttemptHistory | None) -> None:
    """Prints the end of the batch script's log. `attempt` is the attempt whose logs were printed; None if no rank has a
    log. Raises RunError if the run has no log at all."""
    shown = attempt or history.last
    batch = batch_log(history.run, shown.job if shown else history.job)
    if attempt is None and not batch.exists():
        check_read(history)
        begun = "nothing was printed yet" if shown else "no attempt has begun"
        raise RunError(f"{shown_path(history.run.path)}: no logs, for {begun}. `-f` waits for them.")
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


def begin(logs: Sequence[RankLog], choice: Choice, printer: Printer) -> None:
    """Moves each log to the first line that the user wants, and prints a notice about logs that are missing or cannot
    be read."""
    _missing(logs, choice, printer)
    _unreadable(logs, printer)
    if choice.last is not None and not choice.errors:
        last = max(FEWEST, choice.last // max(1, len(logs))) if choice.unasked else choice.last
        for log in logs:
            log.begin_at_last(last)
        if choice.unasked and any(log.cut for log in logs):
            of = "" if len(logs) == 1 else " of each log"
            printer.notice(f"the last {last} lines{of}; -n all prints all")


def _missing(logs: Sequence[RankLog], choice: Choice, printer: Printer) -> None:
    if choice.ranks is not None and (known := [rank for log in logs for rank in log.ranks()]):
        for word in choice.ranks.without(known):
            printer.notice(f"there is no log of rank{'s' * ('-' in word)} {word}")


def _unreadable(logs: Sequence[RankLog], printer: Printer) -> None:
    reasons: dict[str, list[RankLog]] = {}
    for log in logs:
        if why := log.problem():
            reasons.setdefault(why, []).append(log)
    for why, those in reasons.items():
        others = named((log.file.number for log in those[1:]), "node" if those[0].file.is_shared else "rank")
        more = f" and those of {others}" if len(those) > 1 else ""
        printer.notice(f"{shown_path(those[0].path)}{more}: cannot be read: {why}")
