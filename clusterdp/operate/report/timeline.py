"""The attempts of a run as bars over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterdp.operate.account.run_account import AttemptAccount, RunAccount
from clusterdp.operate.event_text import ending_text
from clusterdp.operate.run_history import RunHistory, newest
from clusterdp.operate.run_state import RunState
from clusterdp.rundir.lenient_reads import integer, time_of
from clusterdp.wording import duration

MANY = 100  # rows: the newest attempts
# What is drawn, in this order within an attempt, and which parts of the account it is. Saves are ticks over them.
KINDS = {
    "starting": ("startup", "restore"),
    "training": ("kept", "saves", "evaluation", "running"),
    "lost": ("lost",),
    "ending": ("shutdown",),
    "unseen": ("unseen",),
}
MEANING = {
    "queued": "waiting in the queue",
    "starting": "until its first step: imports, compilation, restore",
    "training": "steps that count, saves and evaluations",
    "lost": "steps that had to be trained again",
    "ending": "after its last step",
    "unseen": "after its last sign of life",
    "saving": "a checkpoint was committed",
}


@dataclass(frozen=True)
class Span:
    """left, width: percent of the whole time."""

    kind: str
    left: float
    width: float
    title: str


@dataclass(frozen=True)
class Row:
    number: int
    name: str
    spans: list[Span]
    saves: list[tuple[float, str]]  # percent, and in words
    ended: str
    took: str


@dataclass(frozen=True)
class Timeline:
    rows: list[Row]
    ticks: list[str]  # durations since the begin, at equal distances
    began: float
    meaning: dict[str, str]  # of the kinds that are drawn
    older: int  # attempts that are not


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
    rows = [_row(history, each, endings[each.name], begin, whole) for each in shown]
    kinds = {span.kind for row in rows for span in row.spans} | {"saving" for row in rows if row.saves}
    ticks = [duration(whole * quarter / 4) for quarter in range(5)]
    meaning = {kind: text for kind, text in MEANING.items() if kind in kinds}
    return Timeline(rows, ticks, begin, meaning, len(placed) - len(shown))


def _row(history: RunHistory, attempt: AttemptAccount, ended: str, begin: float, whole: float) -> Row:
    place = attempt.place

    def percent(when: float) -> float:
        return round(100 * (when - begin) / whole, 3)

    spans, at = [], place.begin
    if place.queued is not None and place.queued < place.begin:
        waited = duration(place.begin - place.queued)
        left = percent(place.queued)
        spans.append(Span("queued", left, percent(place.begin) - left, f"queued: {waited}"))
    for kind, parts in KINDS.items():
        seconds = sum(getattr(attempt.parts, part) for part in parts)
        if seconds >= 0.05:
            spans.append(Span(kind, percent(at), round(100 * seconds / whole, 3), f"{kind}: {duration(seconds)}"))
            at += seconds
    saves = _saves(history, attempt.name)
    marks = [(percent(when), f"step {step} saved") for when, step in saves if place.begin <= when <= place.end]
    took = duration(place.seconds)
    return Row(attempt.number, attempt.name, spans, marks, ended, took)


def _saves(history: RunHistory, attempt: str) -> Sequence[tuple[float, int | None]]:
    own = (event for event in history.events if event.get("event") == "saved" and event.get("attempt") == attempt)
    return [(time_of(event), integer(event.get("step"))) for event in own]
