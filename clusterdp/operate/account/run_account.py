"""RunAccount: how a run used its allocated time, by attempt and by the cause of the attempt's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from clusterdp.operate.account.parts import (
    NAMES,
    Allocation,
    Parts,
    allocations,
    kept_up_to,
    own_events,
    parts_of,
    told_by,
)
from clusterdp.operate.queue.run_status import RunStatus
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from clusterdp.wording import duration


class AttemptAccount(NamedTuple):
    """How one attempt used its allocated time."""

    name: str
    number: int
    nodes: str
    cause: str  # cause of the attempt's end; empty while the attempt runs
    place: Allocation
    queue_s: float | None  # seconds in the queue; None if the wait's begin is not recorded
    parts: Parts
    steps: int  # steps that the attempt trained, lost steps included
    steps_lost: int
    again_s: float  # seconds, within `kept` and `lost`, of steps that an earlier attempt had already trained
    width: int | None  # number of GPUs, or of cores in a run without GPUs; None if unknown

    @property
    def hours(self) -> float:
        return self.parts.allocated * (self.width or 0) / 3600


class CauseAccount(NamedTuple):
    """Sums over all attempts that ended for the same cause."""

    cause: str
    attempts: int
    hours: float
    lost_hours: float  # hours of lost steps and unseen time, and of the next attempt's start-up and restore


class RunAccount(NamedTuple):
    attempts: tuple[AttemptAccount, ...]
    unit: str  # "GPU" or "core"; empty if the numbers of both are unknown
    total: Parts
    by_cause: tuple[CauseAccount, ...]

    @property
    def goodput(self) -> float | None:
        """The share of the allocated time that became kept steps; None if the program records no steps."""
        whole = self.total.allocated
        return self.total.kept / whole if whole and not self.total.running else None

    @property
    def hours(self) -> float:
        return sum(attempt.hours for attempt in self.attempts)

    @property
    def lost_hours(self) -> float:
        return sum(each.lost_hours for each in self.by_cause)

    @property
    def queue_s(self) -> float:
        return sum(attempt.queue_s or 0.0 for attempt in self.attempts)


def account_of(history: RunHistory, now: float | None = None, ended: Mapping[str, float] | None = None) -> RunAccount:
    """Returns how a run used its allocated time. `now` is None unless the newest attempt runs. `ended` maps an attempt
    to the time at which Slurm ended the attempt. An attempt whose end is not recorded counts until its last sign of
    life."""
    places = allocations(history, now, ended or {})
    events = own_events(history)
    has_steps = any(event.get("event") == "spent" for event in history.events)
    unit, widths = _widths(places)
    attempts: list[AttemptAccount] = []
    before = 0  # the last step that any earlier attempt has trained
    rows = zip(history.attempts, events, places, kept_up_to(history), widths, strict=True)
    for attempt, own, place, kept, width in rows:
        told = told_by(attempt, own, place, has_steps=has_steps)
        parts = parts_of(attempt, own, place, told, kept)
        steps, lost = _steps(attempt, kept)
        again = min(told.until(before), parts.kept + parts.lost) if told.points else 0.0
        queue_s = max(0.0, place.begin - place.queued) if place.queued is not None else None
        cause = attempt.cause
        attempts.append(
            AttemptAccount(
                attempt.name, attempt.number, attempt.nodes, cause, place, queue_s, parts, steps, lost, again, width
            )
        )
        before = max(before, attempt.last_step or 0)
    total = reduce(Parts.plus, (attempt.parts for attempt in attempts), Parts())
    return RunAccount(tuple(attempts), unit, total, _by_cause(attempts))


def since(account: RunAccount, begin: float) -> RunAccount:
    """Returns the part of an account after the time `begin`. An attempt that began before counts by the share of its
    time after it."""
    attempts = []
    for attempt in account.attempts:
        place = attempt.place
        share = min(1.0, max(0.0, (place.end - begin) / place.seconds)) if place.seconds else 0.0
        parts = Parts(**{each: share * getattr(attempt.parts, each) for each in NAMES})
        attempts.append(attempt._replace(parts=parts))
    total = reduce(Parts.plus, (attempt.parts for attempt in attempts), Parts())
    return RunAccount(tuple(attempts), account.unit, total, _by_cause(attempts))


def account_so_far(history: RunHistory, status: RunStatus, now: float) -> RunAccount:
    """Returns the account of a run, until `now` if the run still runs. Slurm's notices also count as records of an
    attempt's end."""
    runs = status.state is RunState.RUNNING
    return account_of(history, now if runs else None, ended_by_slurm(history.run, history.attempts))


def _steps(attempt: AttemptHistory, kept_up_to: int) -> tuple[int, int]:
    """Returns the number of steps that the attempt trained, and how many of these steps are lost."""
    if attempt.last_step is None:
        return 0, 0
    first = attempt.restored or 0
    return max(0, attempt.last_step - first), max(0, attempt.last_step - max(first, kept_up_to))


def _widths(places: Sequence[Allocation]) -> tuple[str, list[int | None]]:
    """Returns the unit (GPU or core), and how many units each attempt had. A missing number is copied from a
    neighbouring attempt."""
    gpus = any(place.gpus for place in places)
    known = [place.gpus if gpus else place.cpus for place in places]
    for order in (range(1, len(known)), range(len(known) - 2, -1, -1)):
        for i in order:
            neighbour = known[i - 1 if order.step > 0 else i + 1]
            known[i] = known[i] or neighbour
    unit = "GPU" if gpus else "core"
    return unit if any(known) else "", known


def _by_cause(attempts: Sequence[AttemptAccount]) -> tuple[CauseAccount, ...]:
    """Returns the sums for each cause of an end, ordered by the first attempt with this cause."""
    found: dict[str, CauseAccount] = {}
    attempts = [attempt for attempt in attempts if attempt.parts.allocated]
    for i, attempt in enumerate(attempts):
        parts = attempt.parts
        lost = (parts.lost + (parts.unseen if attempt.cause else 0.0)) * (attempt.width or 0)
        for after in attempts[i + 1 : i + 2]:
            lost += (after.parts.startup + after.parts.restore) * (after.width or 0)
        sums = found.get(attempt.cause, CauseAccount(attempt.cause, 0, 0.0, 0.0))
        found[attempt.cause] = CauseAccount(
            attempt.cause, sums.attempts + 1, sums.hours + attempt.hours, sums.lost_hours + lost / 3600
        )
    return tuple(found.values())


def goodput_line(account: RunAccount) -> str:
    """Returns the line about goodput that `clusterdp status` prints; empty if no time was allocated."""
    whole = account.total.allocated
    if not whole:
        return ""
    kept = account.goodput
    words = f"{duration(whole)} allocated"
    if kept is not None:
        words = f"goodput {percent(kept)}: {duration(account.total.kept)} of {duration(whole)} became steps"
    if account.unit:
        words += f"; {hours(account.hours)} {account.unit}-hours, {hours(account.lost_hours)} lost"
    return words


def brief(seconds: float) -> str:
    """Returns a duration as short text for a table: `-`, `4.0s`, `4m12s`, `1h02m`, `3d04h`."""
    if seconds < 0.05:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    left = round(seconds)
    for size, word, small, lesser in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if left >= size:
            return f"{left // size}{word}{left % size // small:02}{lesser}"
    return f"{left}s"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def hours(value: float) -> str:
    """Returns a number of hours such as `69.3` or `0.012`, with at most three digits after the point."""
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}".rstrip("0").rstrip(".")
