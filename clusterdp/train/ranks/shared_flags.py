"""SharedFlags: flags that one rank sets become known to all ranks at the same step.

The flags are a small vector that the nodes' agents reduce by MAX (see Control). The main thread starts an exchange
and reads the result when the next exchange is due, without waiting in between. SharedFlags uses no collective in a
signal handler or in a second thread, and no GPU sync. At most one exchange is in flight. Every rank starts the same
number of exchanges, because only agreed flags decide whether another exchange follows.

An exchange starts every `k` steps. k follows from the agreed (slowest) step time, so that k steps take about 100 ms.
All ranks know of a stop after two exchanges at most. If a rank had to wait for an exchange, k grows until k steps take
longer than the exchange, but never longer than 2 s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from clusterdp.train.ranks.control import Control
from clusterdp.train.ranks.group import Group
from clusterdp.train.ranks.stop import StopSignal

Item = TypeVar("Item")

STOPS = ("user", "term", "time")  # reasons to stop; the first of them whose flag is set is used
# Flag `save`: a save is due by the clock. `copy`: a copy to memory is due. `metrics`: a record of a step is due that is
# of all ranks. `enough`: the training shall end. `busy`: this rank still has items.
FLAGS = (*STOPS, "save", "copy", "metrics", "enough", "busy")
ONE_SHOT = ("save", "copy", "metrics")  # flags that are cleared when they are sent
PERIOD_S, LONGEST_S = 0.1, 2.0  # seconds that k steps take: usually, and at most if exchanges are slow
DECAY = 0.9  # factor on the estimated exchange time after an exchange without a wait, so that it falls slowly
LATELY = 64  # number of latest exchanges, and of latest saves, from which the time of the next ones is estimated
MARGIN = 1.25  # factor on the time that a stop is expected to take
LEAVING_S = 5.0  # seconds for the outcome, the end of all processes, and the requeue
MOST_STEPS = 32  # limit of k: if steps suddenly become slow, a stop must still come soon


@dataclass(frozen=True)
class Agreed:
    """The flags that all ranks know."""

    flags: dict[str, bool]  # name of a flag -> whether any rank has set it
    progress: int  # the least SharedFlags.progress() of all ranks
    step_s: float  # seconds per step of the slowest rank, on average since the previous exchange
    way_s: float  # estimated seconds of an exchange; near 0 if no rank has had to wait lately

    def __getitem__(self, flag: str) -> bool:
        return self.flags[flag]

    @property
    def stop(self) -> str | None:
        return next((reason for reason in STOPS if self.flags[reason]), None)


def agree_on_stop(group: Group, stop: StopSignal) -> str | None:
    """Returns the reason why all ranks stop now, or None. Collective. In a loop, use SharedFlags instead."""
    asked = stop.reason()
    agreed = group.agree(*(asked == reason for reason in STOPS))
    return next((reason for reason, yes in zip(STOPS, agreed, strict=True) if yes), None)


def p95(values: Collection[float]) -> float:
    """Returns the 95th percentile, or the nearest value below it; 0 if there are no values."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else 0.0


class SharedFlags:
    """Exchanges flags between the ranks. The main thread calls all methods, and all ranks make the same calls.

    control: Group.flags_group; None for a single process. stop: the StopSignal whose reason is read before each
    exchange.
    """

    def __init__(self, control: Control | None, stop: StopSignal | None = None):
        self.control = control
        self.stop = stop or StopSignal()
        self.progress: Callable[[], int] = lambda: 0  # the progress of this rank's saves, read at each exchange
        # The latest durations of exchanges and saves, in seconds, from which the time of the stop is computed.
        self.steps: deque[float] = deque(maxlen=LATELY)
        self.saves: deque[float] = deque(maxlen=LATELY)
        self.every = 1  # k
        self.sent = 0
        self._flags = dict.fromkeys(FLAGS, False) | {"busy": True}
        self._sent_numbers: list[int] = []
        self._exchange: int | None = None  # the one in flight
        self._sent_at = self._way_s = 0.0
        self._ticks = 0
        self._since = time.monotonic()

    def set(self, flag: str, value: bool = True) -> None:
        """Sets a flag for the next exchange."""
        self._flags[flag] = value

    def tick(self) -> Agreed | None:
        """Returns the result of the last exchange if the next one is due, else None. Call tick() once per step. It
        starts the next exchange, unless the result was a stop.

        With gradient accumulation, call tick() once per optimizer step, because a checkpoint does not hold gradients.
        """
        self._ticks += 1
        if self._ticks < self.every:
            return None
        return self._turn()

    def iterate(self, items: Iterable[Item]) -> Iterator[tuple[Item | None, Agreed | None]]:
        """Yields each item, and after it the result of tick(). Ranks may have different numbers of items, as in an
        evaluation.

        A rank without further items continues to exchange flags, and yields (None, agreed) for each exchange, until no
        rank has items. The caller leaves when `agreed.stop` is set. All ranks leave at the same exchange.
        """
        for item in items:
            yield item, None
            agreed = self.tick()
            if agreed is not None:
                yield None, agreed
        self.set("busy", False)
        while True:
            agreed = self._turn()
            if agreed is not None:
                yield None, agreed
                if not agreed["busy"]:
                    self.set("busy")
                    return

    def discount(self, seconds: float) -> None:
        """Subtracts seconds from the time since the last exchange that were not spent on steps but, for example, on a
        save."""
        self._since += seconds

    @property
    def agreement_s(self) -> float:
        """Seconds from the moment when one rank has a reason to stop until all ranks stop, which takes two
        exchanges."""
        return 2 * (self.every + 1) * p95(self.steps)

    def drain(self) -> Agreed | None:
        """Waits for the exchange in flight, if there is one. drain() is called when all ranks end a phase."""
        self._ticks = 0
        return self._collect()

    def _turn(self) -> Agreed | None:
        elapsed = time.monotonic() - self._since
        agreed = self._collect()
        self._since = time.monotonic()
        measured = self._ticks and self.sent  # the time before the first exchange is set-up, not steps
        step_us = max(1, round(elapsed / self._ticks * 1e6)) if measured else 0
        if agreed is not None and agreed.step_s > 0:  # a step_s of 0 means that no step was measured
            period_s = min(max(PERIOD_S, 2 * agreed.way_s), LONGEST_S)
            self.every = max(1, min(MOST_STEPS, round(period_s / agreed.step_s)))
            self.steps.append(agreed.step_s)
            self.stop.needed_s = MARGIN * (self.agreement_s + p95(self.saves)) + LEAVING_S
        self._ticks = 0
        if agreed is None or not (agreed.stop or not agreed["busy"]):
            self._send(step_us)
        return agreed

    def _send(self, step_us: int) -> None:
        if reason := self.stop.reason():
            self._flags[reason] = True
        numbers = [*self._flags.values(), -self.progress(), step_us, -round(self._way_s * 1e6)]
        for flag in ONE_SHOT:
            self._flags[flag] = False
        self.sent += 1
        self._sent_at = time.monotonic()
        self._sent_numbers = numbers
        self._exchange = self.control.begin(numbers) if self.control is not None else 0

    def _collect(self) -> Agreed | None:
        if self._exchange is None:
            return None
        numbers = self._sent_numbers
        if self.control is not None:
            waiting = not self.control.is_done(self._exchange)
            numbers = self.control.result(self._exchange)
            # The rank that sends last does not wait for other ranks. Therefore the least wait of all ranks is the time
            # of the exchange itself.
            self._way_s = time.monotonic() - self._sent_at if waiting else DECAY * self._way_s
        self._exchange = None
        *flags, progress, step_us, way_us = numbers
        told = {name: bool(value) for name, value in zip(self._flags, flags, strict=True)}
        return Agreed(told, -progress, step_us / 1e6, -way_us / 1e6)
