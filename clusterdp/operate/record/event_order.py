"""NewEvents: the events of a run in the order in which they must have happened, each returned once.

Each writer of events has its own file. The clocks of hosts differ by seconds, and NFS may show one file later than
another. By time alone, an attempt may seem to start before its job was submitted, or before the previous attempt ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from clusterdp.operate.record.attempt_history import ENDINGS
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record, time_of

SKEW_S = 10.0  # clocks differ by less; an event this long after an end is real
STALE = frozenset({"started", "restored", "signal"})  # kinds that are not shown after their attempt's end
Key = tuple[object, ...]


@dataclass
class NewEvents:
    """Finds the events that were not shown yet."""

    late_s: float  # seconds for which an event waits for earlier events
    told: set[Key] = field(default_factory=set)
    held: dict[Key, float] = field(default_factory=dict)  # event -> time since which the event is held back
    ended: set[str] = field(default_factory=set)  # attempts whose end was shown

    def take(self, history: RunHistory, now: float, everything: bool = False) -> tuple[Record, ...]:
        """Returns the events that may be shown now and were not shown before, by time. With `everything`, no event is
        held back."""
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
    """What is recorded so far. all_before() returns whether all events that must precede an event are recorded."""

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
        if name not in self.jobs:  # the login node wrote the event
            return True
        begins = event.get("event") == "started"
        before = self.before.get(name)
        return (
            self.jobs[name] in self.submitted
            and (begins or name in self.began)
            and (before is None or before in self.ended)
        )


def in_order(history: RunHistory) -> list[tuple[float, Record]]:
    """Returns the events ordered by time. A time is moved if it contradicts the only possible order: a job is
    submitted, an attempt starts, runs and ends, and the next attempt starts."""
    told: dict[str, list[Record]] = {}
    for event in history.events:
        told.setdefault(_subject(event), []).append(event)
    when = {_key(event): time_of(event) for event in history.events}
    place: dict[Key, int] = {}  # the order of events with the same time
    first: dict[str, float] = {}  # job -> the time of its first event
    last: dict[str, float] = {}  # job -> the time of its latest event so far
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
    """Returns the name of the attempt that an event is about; a name such as `submit-7` if the login node wrote the
    event."""
    return str(event.get("of") or event.get("attempt") or "")


def _key(event: Record) -> Key:
    return time_of(event), event.get("event"), event.get("attempt"), event.get("of")
