"""NewEvents: the events of a run in the order in which they must have happened, each returned once.

Each writer has its own file. The clocks of the hosts differ by seconds, and over NFS one file shows later than another:
by time alone, an attempt may seem to start before its job was submitted, or before the last attempt ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from clusterdp.operate.record.attempt_history import ENDINGS
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record, time_of

SKEW_S = 10.0  # clocks differ by less: an attempt that writes later than this after its end had been given up
STALE = frozenset({"started", "restored", "signal"})  # not shown after the end of their attempt
Key = tuple[object, ...]


@dataclass
class NewEvents:
    """The events that were not shown yet."""

    late_s: float  # the time that an event waits for earlier events
    told: set[Key] = field(default_factory=set)
    held: dict[Key, float] = field(default_factory=dict)  # event -> the time since which it is held back
    ended: set[str] = field(default_factory=set)  # attempts whose end was shown

    def take(self, history: RunHistory, now: float, everything: bool = False) -> tuple[Record, ...]:
        """Returns the events that may be shown now and were not before, by time. `everything`: none is held back."""
        if all(_key(event) in self.told for event in history.events):
            return ()
        known = _Known(history)
        news = []
        for when, event in in_order(history):
            key, name = _key(event), _subject(event)
            if key in self.told:
                continue
            since = self.held.setdefault(key, now)
            if not (everything or known.all_before(event) or now - since >= self.late_s):
                continue
            self.told.add(key)
            if event.get("event") not in STALE or name not in self.ended:
                news.append({**event, "time": when})
            if event.get("event") in ENDINGS:
                self.ended.add(name)
        return tuple(news)


class _Known:
    """The recorded events, by which all_before() finds whether an event comes too early."""

    def __init__(self, history: RunHistory):
        self.submitted = {str(event.get("job")) for event in history.events if event.get("event") == "submitted"}
        self.began = {_subject(event) for event in history.events if event.get("event") == "started"}
        self.ended = {_subject(event) for event in history.events if event.get("event") in ENDINGS}
        self.jobs = {attempt.name: attempt.job for attempt in history.attempts}
        by_job = sorted(history.attempts, key=lambda attempt: attempt.job)  # a stable sort keeps the order within a job
        pairs = itertools.pairwise(by_job)
        self.before = {after.name: first.name for first, after in pairs if first.job == after.job}

    def all_before(self, event: Record) -> bool:
        name = _subject(event)
        if name not in self.jobs:  # an event of the login node
            return True
        begins = event.get("event") == "started"
        before = self.before.get(name)
        return (
            self.jobs[name] in self.submitted
            and (begins or name in self.began)
            and (before is None or before in self.ended)
        )


def in_order(history: RunHistory) -> list[tuple[float, Record]]:
    """Returns the events by time. A time that contradicts this order is moved: a job is submitted, an attempt starts,
    runs and ends, and the next attempt starts."""
    told: dict[str, list[Record]] = {}
    for event in history.events:
        told.setdefault(_subject(event), []).append(event)
    when = {_key(event): time_of(event) for event in history.events}
    place: dict[Key, int] = {}  # the order of events with the same time
    first: dict[str, float] = {}  # job -> the time of its begin
    last: dict[str, float] = {}  # job -> the end of its last attempt so far
    for attempt in history.attempts:
        events = sorted(told.get(attempt.name, []), key=_phase)
        end = max((time_of(event) for event in events if event.get("event") in ENDINGS), default=float("inf"))
        latest = last.get(attempt.job, float("-inf"))
        for event in events:
            place[_key(event)] = len(place) + 1
            if time_of(event) <= end + SKEW_S:
                latest = when[_key(event)] = max(latest, time_of(event))
                first.setdefault(attempt.job, latest)
        last[attempt.job] = latest
    for event in history.events:
        if event.get("event") == "submitted":
            when[_key(event)] = min(time_of(event), first.get(str(event.get("job")), float("inf")))
    moved = [(when[_key(event)], event) for event in history.events]
    return sorted(moved, key=lambda one: (one[0], place.get(_key(one[1]), 0)))


def _phase(event: Record) -> tuple[int, float]:
    kind = event.get("event")
    return (0 if kind == "started" else 2 if kind in ENDINGS else 1), time_of(event)


def _subject(event: Record) -> str:
    """Returns the attempt of an event; `submit-7` for an event of the login node."""
    return str(event.get("of") or event.get("attempt") or "")


def _key(event: Record) -> Key:
    return time_of(event), event.get("event"), event.get("attempt"), event.get("of")
