"""From where on each log is shown, and what there is to say about that."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.operate.formatting import clock, shown_path
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.ranks import named
from clusterdp.operate.logs.timed_log import TimedLog

FEWEST = 10  # lines of each log, by our own default


def begin(logs: Sequence[TimedLog], choice: Choice, printer: Printer) -> None:
    """Leaves out what is not wanted, and says which logs cannot be read."""
    _missing(logs, choice, printer)
    _unreadable(logs, printer)
    if choice.since is not None:
        _since(logs, choice.since, printer)
    if choice.last is not None and not choice.errors:
        last = max(FEWEST, choice.last // max(1, len(logs))) if choice.unasked else choice.last
        for log in logs:
            log.begin_at_last(last)
        if choice.unasked and any(log.cut for log in logs):
            of = "" if len(logs) == 1 else " of each log"
            printer.notice(f"the last {last} lines{of}; -n all prints all")


def _missing(logs: Sequence[TimedLog], choice: Choice, printer: Printer) -> None:
    if choice.ranks is not None and logs:
        for word in choice.ranks.without(log.rank for log in logs):
            printer.notice(f"there is no log of rank{'s' * ('-' in word)} {word}")


def _unreadable(logs: Sequence[TimedLog], printer: Printer) -> None:
    reasons: dict[str, list[TimedLog]] = {}
    for log in logs:
        if why := log.problem():
            reasons.setdefault(why, []).append(log)
    for why, those in reasons.items():
        more = f" and those of {named(log.rank for log in those[1:])}" if len(those) > 1 else ""
        printer.notice(f"{shown_path(those[0].path)}{more}: cannot be read: {why}")


def _since(logs: Sequence[TimedLog], since: float, printer: Printer) -> None:
    untimed = [log for log in logs if not log.begin_since(since).timed]
    if untimed:
        who = named(log.rank for log in untimed)
        lines = "some of their lines have" if len(untimed) > 1 else "some of its lines have"
        printer.notice(f"{who}: {lines} no times and may be from before {clock(since)}")
