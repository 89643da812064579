"""The attempts of a run as bars over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterdp.operate.account.run_account import AttemptAccount, RunAccount
from clusterdp.operate.event_text import ending_text
from clusterdp.operate.html_page.bars import Axis, Bar, Mark, meaning_of, seconds_by_kind
from clusterdp.operate.run_history import RunHistory, newest
from clusterdp.operate.run_state import RunState
from clusterdp.rundir.lenient_reads import integer, time_of
from clusterdp.wording import duration

MANY = 100  # rows: the newest attempts


@dataclass(frozen=True)
class Timeline:
    rows: list[Bar]
    ticks: list[str]
    meaning: dict[str, str]
    older: int  # attempts that are not drawn


def timeline(history: RunHistory, account: RunAccount) -> Timeline | None:
    """None if nothing is on record of when an attempt ran."""
    placed = [each for each in account.attempts if each.place.begin]
    shown = placed[-MANY:]
    begin = min((each.place.queued or each.place.begin for each in shown), default=0.0)
    whole = max((each.place.end for each in shown), default=0.0) - begin
    if whole <= 0:
        return None
    endings = {attempt.name: ending_text(attempt) or "no ending on record" for attempt in history.attempts}
    if history.state is RunState.RUNNING and (last := newest(history.attempts)):
        endings[last.name] = "running"
    axis = Axis(begin, whole)
    rows = [_row(history, each, endings[each.name], axis) for each in shown]
    return Timeline(rows, axis.ticks, meaning_of(rows), len(placed) - len(shown))


def _row(history: RunHistory, attempt: AttemptAccount, ended: str, axis: Axis) -> Bar:
    place = attempt.place
    spans = axis.spans(place.queued, place.begin, seconds_by_kind(attempt))
    saves = [(when, step) for when, step in _saves(history, attempt.name) if place.begin <= when <= place.end]
    marks = [Mark("saving", axis.percent(when), f"step {step} saved") for when, step in saves]
    return Bar(attempt.number, attempt.name, spans, marks, ended, duration(place.seconds))


def _saves(history: RunHistory, attempt: str) -> Sequence[tuple[float, int | None]]:
    own = (event for event in history.events if event.get("event") == "saved" and event.get("attempt") == attempt)
    return [(time_of(event), integer(event.get("step"))) for event in own]
