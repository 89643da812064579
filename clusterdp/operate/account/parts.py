"""Divides the allocated time of one attempt into parts, such as start-up, saves and lost steps.

startup     until the end of the first step, without the restore: Slurm's prolog, the batch script, imports, compilation
restore     reading the checkpoint
kept        steps that are in the run's state
lost        steps that are in no checkpoint from which a later attempt continued: they had to be done again
saves       waits of the training for a save
evaluation  between two epochs, and after the last epoch
running     the work of a program that records no steps: command:, script:, or its own loop
shutdown    from the end of the program's work to the end of the batch script
unseen      from the last sign of life to the end, without a record of the activity
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from clusterdp.operate.record.attempt_history import ENDINGS, AttemptHistory
from clusterdp.operate.record.log_files import printed_at
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.lenient_reads import Record, integer, time_of
from clusterdp.rundir.names import LOCAL

ENDED_BY_ITSELF = (0, 75)  # exit codes of a program that chose its end by itself
ALL = 1 << 63
CPUS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


class Parts(NamedTuple):
    """The seconds of each part of an attempt. The sum of all parts is the allocated time, because `shutdown` or
    `unseen` is the remainder."""

    startup: float = 0.0
    restore: float = 0.0
    kept: float = 0.0
    lost: float = 0.0
    saves: float = 0.0
    evaluation: float = 0.0
    running: float = 0.0
    shutdown: float = 0.0
    unseen: float = 0.0

    def plus(self, other: Parts) -> Parts:
        return Parts(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def allocated(self) -> float:
        return math.fsum(self)


NAMES = Parts._fields


class Told(NamedTuple):
    """The time of an attempt, according to its own events. `points` are pairs (step, seconds of all steps up to this
    step), in rising order."""

    seconds: dict[str, float]  # keys: startup, restore, steps, saves, evaluation, running
    points: tuple[tuple[int, float], ...] = ()

    def until(self, step: int) -> float:
        return seconds_at(self.points, step)


def told_by(attempt: AttemptHistory, own: Sequence[Record], place: Allocation, *, has_steps: bool) -> Told:
    """Returns how an attempt used its time. If the run records steps (`has_steps`), an attempt without steps was still
    starting."""
    spent = [event for event in own if event.get("event") == "spent"]
    started = time_of(last_of(own, "started")) or place.begin
    if spent:
        return _told_by_steps(attempt, own, spent, place)
    seen = place.end if place.runs else time_of(last_of(own, "exited")) or _last_sign(attempt, own)
    if has_steps:
        return Told({"startup": seen - place.begin})
    return Told({"startup": started - place.begin, "running": seen - started})


def _told_by_steps(attempt: AttemptHistory, own: Sequence[Record], spent: Sequence[Record], place: Allocation) -> Told:
    def of_steps(event: Record) -> float:  # a rank's own count includes the time of suspensions
        return _seconds(event, "steps") - suspended_s(own, time_of(event), since=time_of(spent[0]))

    last, when = spent[-1], time_of(spent[-1])
    seconds = {kind: _seconds(last, kind) for kind in ("startup", "restore", "saves", "evaluation")}
    seconds["steps"] = of_steps(last)
    seconds["startup"] += when - suspended_s(own, when) - sum(seconds.values()) - place.begin
    points = [(attempt.restored or 0, 0.0)]
    points += [(integer(event.get("step")) or 0, of_steps(event)) for event in spent]
    after = max(0.0, (attempt.measured_at or 0.0) - when)  # the last metrics may be newer than the last `spent` event
    if attempt.last_step is not None and attempt.last_step > points[-1][0]:
        seconds["steps"] += after
        points.append((attempt.last_step, seconds["steps"]))
    else:
        seconds["evaluation"] += after
    return Told(seconds, tuple((step, max(0.0, s)) for step, s in points))


def parts_of(attempt: AttemptHistory, own: Sequence[Record], place: Allocation, told: Told, kept_up_to: int) -> Parts:
    """Returns the parts of an attempt's time. `kept_up_to` is the last step that is not lost."""
    room = place.seconds
    found: dict[str, float] = {}
    for kind in ("startup", "restore", "steps", "saves", "evaluation", "running"):
        # Clocks of hosts differ: no part may be below 0, and the sum of all parts at most the allocated time.
        found[kind] = min(max(told.seconds.get(kind, 0.0), 0.0), room)
        room -= found[kind]
    steps = found.pop("steps")
    lost = min(steps, max(0.0, told.until(ALL) - told.until(kept_up_to)))
    shutdown = min(room, _shutdown(own, place, room))
    return Parts(**found, kept=steps - lost, lost=lost, shutdown=shutdown, unseen=room - shutdown)


def _shutdown(own: Sequence[Record], place: Allocation, room: float) -> float:
    """Returns the seconds of the shutdown: all of `room` if the program chose its end, else the time after the
    program's exit."""
    exited = last_of(own, "exited")
    by_itself = "exit" in exited and integer(exited["exit"]) in ENDED_BY_ITSELF
    if by_itself or any(event.get("event") in ("stopped", "finished") and "cause" not in event for event in own):
        return room
    return max(0.0, place.end - time_of(exited)) if exited else 0.0


def _last_sign(attempt: AttemptHistory, own: Sequence[Record]) -> float:
    return max([attempt.measured_at or 0.0, attempt.printed_at or 0.0, *map(time_of, own)])


def _seconds(event: Record, kind: str) -> float:
    value = event.get(f"{kind}_s")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else 0.0


def kept_up_to(history: RunHistory) -> list[int]:
    """Returns for each attempt its last step that is not lost, because a later attempt continued from there; ALL if no
    step is lost."""
    submitted = (event for event in history.events if event.get("event") == "submitted")
    went_back = {str(event.get("job")) for event in submitted if event.get("from_step") is not None}
    kept = _newest(history)
    found = []
    for attempt in reversed(history.attempts):
        found.append(kept)
        first_of_job = next(a for a in history.attempts if a.job == attempt.job) is attempt
        if first_of_job and attempt.job in went_back:  # `resume --from`: the user chose to go back
            kept = ALL
        elif attempt.restored is not None:
            kept = min(kept, attempt.restored)
        elif attempt.first_step is not None:  # the attempt trained, but restored nothing
            kept = 0
    return found[::-1]


def _newest(history: RunHistory) -> int:
    """Returns the last kept step of the newest attempt that trained: once an attempt has ended, its unsaved steps are
    lost."""
    last = next((a for a in reversed(history.attempts) if a.last_step is not None), None)
    if last is None or last.cause in ("", "done"):
        return ALL
    return history.saved[0] if history.saved else 0


def seconds_at(points: Sequence[tuple[int, float]], step: int) -> float:
    """Returns the seconds of all steps up to `step`, by linear interpolation between two `points` (step, seconds)."""
    before = max((point for point in points if point[0] <= step), default=(0, 0.0))
    after = min((point for point in points if point[0] > step), default=before)
    share = (step - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] + share * max(0.0, after[1] - before[1])


class Allocation(NamedTuple):
    """The times and the resources that Slurm gave to one attempt. All times are in seconds since 1970. The clocks of
    two writers may differ by some seconds: no code relies on the order of times from two writers."""

    queued: float | None  # time when the wait in the queue began; None if not recorded
    begin: float
    end: float  # time of the attempt's last sign of life, if its end is not recorded
    runs: bool  # the attempt has not ended
    on_record: bool  # True if the attempt's end is recorded, or the attempt still runs
    cpus: int | None  # CPUs on all nodes together
    gpus: int | None  # GPUs on all nodes together
    suspended_s: float = 0.0  # suspended time between begin and end, which Slurm does not count as allocated

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.begin - self.suspended_s)


def own_events(history: RunHistory) -> list[list[Record]]:
    """Returns the events that each attempt wrote itself, ordered by time."""
    found: dict[object, list[Record]] = {attempt.name: [] for attempt in history.attempts}
    for event in history.events:
        found.get(event.get("attempt"), []).append(event)
    return list(found.values())


def allocations(history: RunHistory, now: float | None, ended: Mapping[str, float]) -> list[Allocation]:
    """Returns the allocation of each attempt. `now` is None unless the newest attempt runs. `ended` comes from
    ended_by_slurm()."""
    events = own_events(history)
    found: list[Allocation] = []
    for i, (attempt, own) in enumerate(zip(history.attempts, events, strict=True)):
        after = (e for a, e in zip(history.attempts[i + 1 :], events[i + 1 :], strict=True) if a.job == attempt.job)
        end, on_record = _end(attempt, own, next(after, []), ended.get(attempt.name))
        if not on_record and i == len(events) - 1:
            end = max(end, printed_at(history.run.attempt(attempt.name).logs) or 0.0)  # a sign of life, too
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
    """Returns Slurm's times at which the attempt entered and left the queue; 0 for a time that is not recorded.

    If the controller's clock is ahead of the node's clock, both times are made earlier by the difference, because a
    script cannot start before its job has left the queue."""
    queued, awake = last_of(own, "queued"), time_of({"time": last_of(own, "started").get("awake")})
    since, until = (time_of({"time": queued.get(key)}) for key in ("since", "until"))
    ahead = max(0.0, until - awake) if awake else 0.0
    return max(0.0, since - ahead), until - ahead


def _since(
    history: RunHistory, attempt: AttemptHistory, own: Sequence[Record], before: Sequence[Allocation]
) -> float | None:
    """Returns the time when an attempt's wait in the queue began: its submit or its requeue, but not before the end of
    the previous attempt."""
    if attempt.job == LOCAL:
        return None
    if before and attempt.name.count(".") > 1:  # a restart in place has no wait
        return before[-1].end
    requeued = bool(before) and not attempt.name.endswith(".0")
    submitted = None if requeued else _submitted(history, attempt)
    since = _times(_queued(own)[0], submitted)
    if before and (since or requeued):
        since.append(before[-1].end)
    return max(since, default=None)


def _end(
    attempt: AttemptHistory, own: Sequence[Record], after: Sequence[Record], by_slurm: float | None
) -> tuple[float, bool]:
    """Returns the attempt's end, and whether the end is recorded. `after` has the events of the job's next attempt,
    which Slurm queued at the end of this attempt. Slurm counts no time after the end of an attempt."""
    seen = max(_times(*map(time_of, own), attempt.measured_at, attempt.started), default=0.0)
    if by_slurm is not None:  # Slurm's time has whole seconds
        return min(max(seen, by_slurm), by_slurm + 1), True
    if any(event.get("event") in ENDINGS and event.get("cause") for event in own):
        return seen, True
    if requeued := _queued(after)[0]:
        return requeued, True
    if attempt.job == LOCAL:
        return seen, bool(attempt.outcome)
    return seen, any(event.get("name") == "ending" for event in own)


def _submitted(history: RunHistory, attempt: AttemptHistory) -> float | None:
    told = (e for e in history.events if e.get("event") in ("submitted", "linked") and e.get("job") == attempt.job)
    return next(map(time_of, told), None)


def _cpus(text: object) -> int | None:
    """Returns the number of CPUs in Slurm's short form: 16 for `4(x2),8`."""
    found = CPUS.findall(text) if isinstance(text, str) else []
    return sum(int(cpus) * int(nodes or 1) for cpus, nodes in found) or None


def suspended_s(own: Sequence[Record], until: float = math.inf, since: float = 0.0) -> float:
    """Returns how many seconds the attempt was suspended. Rank 0's watcher records a suspension when the job
    continues."""
    during = (e for e in own if e.get("event") == "suspended" and since < time_of(e) <= until)
    return math.fsum(s for e in during if isinstance(s := e.get("seconds"), int | float) and 0 <= s < 1e11)


def last_of(events: Sequence[Record], kind: str) -> Record:
    """Returns the last event of a kind; {} if no event has this kind."""
    return next((event for event in reversed(events) if event.get("event") == kind), {})


def _times(*values: object) -> list[float]:
    """Returns as times the values that are valid times, and drops all others."""
    return [when for value in values if (when := time_of({"time": value}))]
