"""When Slurm queued, gave and took back the nodes of an attempt, and what it gave.

Clocks differ by some seconds: nothing here takes the order of two writers' times for granted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.operate.record.attempt_history import ENDINGS, AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record, integer, time_of

CPUS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


@dataclass(frozen=True)
class Allocation:
    """Of one attempt. queued: since when it waited; None if that is not on record. runs: it has not ended. on_record:
    whether its end is; else it is taken to be its last sign of life. cpus, gpus: of all nodes together. suspended_s: of
    the time between, which Slurm does not count."""

    queued: float | None
    begin: float
    end: float
    runs: bool
    on_record: bool
    cpus: int | None
    gpus: int | None
    suspended_s: float = 0.0

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin - self.suspended_s)


def own_events(history: RunHistory) -> list[list[Record]]:
    """What each attempt has written itself, by time."""
    found: dict[object, list[Record]] = {attempt.name: [] for attempt in history.attempts}
    for event in history.events:
        found.get(event.get("attempt"), []).append(event)
    return list(found.values())


def allocations(history: RunHistory, now: float | None, ended: Mapping[str, float]) -> list[Allocation]:
    """One for each attempt of the history. now: if the newest one runs still. ended: by Slurm, see ended_by_slurm()."""
    events = own_events(history)
    found: list[Allocation] = []
    for i, (attempt, own) in enumerate(zip(history.attempts, events, strict=True)):
        after = (e for a, e in zip(history.attempts[i + 1 :], events[i + 1 :], strict=True) if a.job == attempt.job)
        end, on_record = _end(attempt, own, next(after, []), ended.get(attempt.name))
        runs = now is not None and i == len(events) - 1 and not attempt.cause
        started, (_, until) = last_of(own, "started"), _queued(own)
        begin = min(_times(until, started.get("awake"), attempt.started), default=0.0)
        found.append(
            Allocation(
                queued=_since(history, attempt, own, found),
                begin=begin,
                end=max(begin, end, now if runs and now else 0.0),
                runs=runs,
                on_record=on_record or runs,
                cpus=_cpus(started.get("cpus")),
                gpus=integer(started.get("gpus")),
                suspended_s=suspended_s(own),
            )
        )
    return found


def _queued(own: Sequence[Record]) -> tuple[float, float]:
    """Since when the attempt was in the queue, and until when, by Slurm; 0 if that is not on record.

    A controller's clock may be ahead of the node's: then both are put back, for no script starts before its job."""
    queued, awake = last_of(own, "queued"), time_of({"time": last_of(own, "started").get("awake")})
    since, until = (time_of({"time": queued.get(key)}) for key in ("since", "until"))
    ahead = max(0.0, until - awake) if awake else 0.0
    return max(0.0, since - ahead), until - ahead


def _since(
    history: RunHistory, attempt: AttemptHistory, own: Sequence[Record], before: Sequence[Allocation]
) -> float | None:
    """Since when the attempt waited: from its submit or requeue, but not while the one before it still ran."""
    requeued = bool(before) and not attempt.name.endswith(".0")
    submitted = None if requeued else _submitted(history, attempt)
    since = _times(_queued(own)[0], submitted)
    if before and (since or requeued):
        since.append(before[-1].end)
    return max(since, default=None)


def _end(
    attempt: AttemptHistory, own: Sequence[Record], after: Sequence[Record], by_slurm: float | None
) -> tuple[float, bool]:
    """The end, and whether it is on record. after: the events of the job's next attempt, which knows when Slurm queued
    it: that is when this one had ended. What an attempt does after its end is in no time of Slurm's."""
    seen = max(_times(*map(time_of, own), attempt.measured_at, attempt.started), default=0.0)
    if by_slurm is not None:  # in whole seconds
        return min(max(seen, by_slurm), by_slurm + 1), True
    if any(event.get("event") in ENDINGS and event.get("cause") for event in own):
        return seen, True
    if requeued := _queued(after)[0]:
        return requeued, True
    return seen, any(event.get("name") == "ending" for event in own)


def _submitted(history: RunHistory, attempt: AttemptHistory) -> float | None:
    told = (e for e in history.events if e.get("event") in ("submitted", "linked") and e.get("job") == attempt.job)
    return next(map(time_of, told), None)


def _cpus(text: object) -> int | None:
    """`4(x2),8` is 16."""
    found = CPUS.findall(text) if isinstance(text, str) else []
    return sum(int(cpus) * int(nodes or 1) for cpus, nodes in found) or None


def suspended_s(own: Sequence[Record], until: float = math.inf, since: float = 0.0) -> float:
    """For how long the job was suspended, as the watcher of rank 0 saw it when it went on."""
    during = (e for e in own if e.get("event") == "suspended" and since < time_of(e) <= until)
    return math.fsum(s for e in during if isinstance(s := e.get("seconds"), int | float) and 0 <= s < 1e11)


def last_of(events: Sequence[Record], kind: str) -> Record:
    """The last event of a kind; empty if there is none."""
    return next((event for event in reversed(events) if event.get("event") == kind), {})


def _times(*values: object) -> list[float]:
    """Those that can be a time."""
    return [when for value in values if (when := time_of({"time": value}))]
