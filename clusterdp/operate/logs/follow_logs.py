"""The logs as they come, over attempts, until the run is over or the wanted attempt is."""

from __future__ import annotations

from pathlib import Path

from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.operate.follow import Pace, follow
from clusterdp.operate.log_files import batch_log
from clusterdp.operate.logs.batch_end import print_batch_end
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.chosen import announcement, attempt_of, logs_in
from clusterdp.operate.logs.errors import BATCH, ErrorFinder, ErrorReport
from clusterdp.operate.logs.grown_files import GrownFiles, NewNames
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.starts import begin
from clusterdp.operate.logs.timed_log import TimedLog, merged, same_file
from clusterdp.operate.run_history import RunHistory
from clusterdp.rundir import RunDir


def follow_logs(run: RunDir, choice: Choice, printer: Printer, pace: Pace) -> None:
    """Lines of several ranks are in order as far as they have come at one look. A new attempt is announced."""
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
    """The one that was shown last and what came after it; at first the newest."""
    if choice.attempt not in (None, "all"):
        attempt = attempt_of(history, choice.attempt, patient=True)
        return (attempt,) if attempt else ()
    first = 0 if choice.attempt == "all" else -1
    at = next((i for i, attempt in enumerate(history.attempts) if begun and attempt.name == begun[-1]), first)
    return history.attempts[at:]


class _Following:
    """`begun`: the names of the attempts that have been shown. `files`: all ever seen: with submitit the attempts of a
    job share one."""

    def __init__(self, run: RunDir, choice: Choice, printer: Printer, pace: Pace):
        self.run, self.choice, self.printer = run, choice, printer
        self.begun: list[str] = []
        self.files: dict[Path, TimedLog] = {}
        self._logs: dict[str, TimedLog] = {}  # of the attempt at hand, by their names there
        self._finders: dict[TimedLog, ErrorFinder] = {}
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

    def _new_logs(self, attempt: AttemptHistory) -> list[TimedLog]:
        choice, new = self.choice, []
        folder = self.run.attempt(attempt.name).logs
        if not self._folder.may_be_in(folder):
            return []
        there = [(n, path) for n, path in logs_in(folder) if choice.wants(n)]
        if choice.errors and choice.ranks is None:
            there.append((BATCH, batch_log(self.run, attempt.job)))
        for rank, path in there:
            if str(path) in self._logs:
                continue
            file = same_file(path)
            if file not in self.files:
                self.files[file] = TimedLog(rank, path, attempt.started)
                if rank != BATCH:
                    new.append(self.files[file])
            self._logs[str(path)] = self.files[file]
        self.printer.expect(log.rank for log in new)
        return new

    def _drain(self, final: bool) -> None:
        logs = [log for path, log in self._logs.items() if self._may_have_news(path, log) or final]
        if self.choice.errors:
            report = ErrorReport()
            for log in logs:
                report.add(self._finder(log).errors(final))
            report.print(self.printer)
        elif self.printer.labelled:
            self.printer.lines(merged(logs, final))
        else:
            for log in logs:
                for text in log.text(final):
                    self.printer.text(text, log.rank)

    def _may_have_news(self, path: str, log: TimedLog) -> bool:
        waits = self._finder(log).waits if self.choice.errors else log.waits
        return self._grown.grown(path) or waits

    def _finder(self, log: TimedLog) -> ErrorFinder:
        if log not in self._finders:
            self._finders[log] = ErrorFinder(log)
        return self._finders[log]
