"""The events of a run in the order in which they must have happened, each returned once.

Each writer has a file of its own. The clocks of their hosts differ by seconds, and over NFS one file shows later than
another: by time alone an attempt seems to start before its job was submitted, or before the last one ended.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from clusterdp.operate.record.attempt_history import ENDINGS
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record, time_of

SKEW_S = 10.0  # more than clocks differ: an attempt that writes later than that had been given up before
STALE = frozenset({"started", "restored", "signal"})  # of no interest once the end of that attempt has been shown
Key = tuple[object, ...]


@dataclass
class NewEvents:
    """The events that have not been shown yet. `late_s`: how long one waits for those that must come before it."""

    late_s: float
    told: set[Key] = field(default_factory=set)
    held: dict[Key, float] = field(default_factory=dict)  # since when
    ended: set[str] = field(default_factory=set)  # attempts whose end was shown

    def take(self, history: RunHistory, now: float, everything: bool = False) -> tuple[Record, ...]:
        """The events that may be shown now and were not before, in rising time. `everything`: none is held back."""
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
    """The recorded events, to find out whether an event comes too early."""

    def __init__(self, history: RunHistory):
        self.submitted = {str(event.get("job")) for event in history.events if event.get("event") == "submitted"}
        self.began = {_subject(event) for event in history.events if event.get("event") == "started"}
        self.ended = {_subject(event) for event in history.events if event.get("event") in ENDINGS}
        self.jobs = {attempt.name: attempt.job for attempt in history.attempts}
        by_job = sorted(history.attempts, key=lambda attempt: attempt.job)  # stable: in their order within a job
        pairs = itertools.pairwise(by_job)
        self.before = {after.name: first.name for first, after in pairs if first.job == after.job}

    def all_before(self, event: Record) -> bool:
        name = _subject(event)
        if name not in self.jobs:  # the login node's own
            return True
        begins = event.get("event") == "started"
        before = self.before.get(name)
        return (
            self.jobs[name] in self.submitted
            and (begins or name in self.began)
            and (before is None or before in self.ended)
        )


def in_order(history: RunHistory) -> list[tuple[float, Record]]:
    """The events by time. A time that contradicts the order is moved: a job is submitted, an attempt of it starts, runs
    and ends, and the next one starts."""
    told: dict[str, list[Record]] = {}
    for event in history.events:
        told.setdefault(_subject(event), []).append(event)
    when = {_key(event): time_of(event) for event in history.events}
    place: dict[Key, int] = {}  # among those of one time
    first: dict[str, float] = {}  # by job: when it began
    last: dict[str, float] = {}  # and when the last of its attempts so far was over
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
    """The attempt that an event is about; `submit-7` for what the login node wrote."""
    return str(event.get("of") or event.get("attempt") or "")


def _key(event: Record) -> Key:
    return time_of(event), event.get("event"), event.get("attempt"), event.get("of")
