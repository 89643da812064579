"""SharedFlags: flags that one rank sets become known to all ranks at the same step.

The flags are a small vector that is reduced by MAX over a gloo group of its own. The main thread starts the exchange
and reads its result when the next one is due. It does not wait in between. There is no collective in a signal handler
or in a second thread, and no GPU sync. At most one exchange is in flight. Every rank starts the same number of them,
because whether another one follows is decided from agreed flags alone.

An exchange starts every `k` steps. k follows from the agreed (slowest) step time, so that k steps take about 200 ms.
All ranks know of a stop within two exchanges. Starting one costs the main thread 50 to 150 µs; with gloo's threads it
takes a millisecond from two ranks that keep two cores busy. Gloo's all-reduce is a ring: over thousands of ranks an
exchange may take a second (calculated, not measured). If a rank had to wait for one, k grows until k steps take longer
than the exchange, but never longer than 2 s.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from clusterdp.train.ranks.group import Group
from clusterdp.train.ranks.stop import StopSignal

Item = TypeVar("Item")

STOPS = ("user", "term", "time")  # reasons to stop; the first that is set counts
# save: one is due by the clock; enough: the training is to end; busy: this rank still has items
FLAGS = (*STOPS, "save", "enough", "busy")
ONE_SHOT = ("save",)  # cleared when sent
PERIOD_S, LONGEST_S = 0.2, 2.0  # of k steps; the longest where exchanges take that long: a stop must come soon
DECAY = 0.9  # of the exchange time, when no wait has measured it anew; else every second exchange would be waited for
LATELY = 64  # exchanges, and saves, that tell how long the next ones take
MARGIN = 1.25  # of the time that a stop is expected to take
LEAVING_S = 5.0  # for the outcome, the end of all processes, and the requeue
MOST_STEPS = 32  # k is never more: if steps suddenly become slow, a stop must still come soon


@dataclass(frozen=True)
class Agreed:
    """The flags that all ranks know. A flag is true if any rank had set it. `progress` is the smallest of all ranks'
    numbers."""

    flags: dict[str, bool]
    progress: int
    step_s: float  # of the slowest rank, on average since the exchange before
    way_s: float  # how long an exchange takes, where that is longer than k steps

    def __getitem__(self, flag: str) -> bool:
        return self.flags[flag]

    @property
    def stop(self) -> str | None:
        return next((reason for reason in STOPS if self.flags[reason]), None)


def agree_on_stop(group: Group, stop: StopSignal) -> str | None:
    """Why all ranks stop now, if any has been asked to. Collective, outside of any loop that exchanges flags."""
    asked = stop.reason()
    agreed = group.agree(*(asked == reason for reason in STOPS))
    return next((reason for reason, yes in zip(STOPS, agreed, strict=True) if yes), None)


def p95(values: Collection[float]) -> float:
    """The 95th percentile, or the nearest value below it; 0 of none."""
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else 0.0


class SharedFlags:
    """All methods are called by the main thread, and on all ranks alike.

    group: a gloo group that is used for nothing else meanwhile. None: a single process, which agrees with itself.
    stop: asked before each exchange.
    """

    def __init__(self, group: dist.ProcessGroup | None, stop: StopSignal | None = None):
        self.group = group
        self.stop = stop or StopSignal()
        self.progress: Callable[[], int] = lambda: 0  # how far this rank's saves are; asked before each exchange
        # The last of each, in seconds, for the lead before the end of the job's time.
        self.steps: deque[float] = deque(maxlen=LATELY)
        self.saves: deque[float] = deque(maxlen=LATELY)
        self.every = 1  # k
        self.sent = 0
        self._flags = dict.fromkeys(FLAGS, False) | {"busy": True}
        self._numbers = array("q", bytes(8 * (len(self._flags) + 3)))
        self._vector = torch.frombuffer(self._numbers, dtype=torch.int64)  # the same memory; is slower to write to
        self._work: Any = None
        self._sent_at = self._way_s = 0.0
        self._ticks = 0
        self._since = time.monotonic()
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # torch's stub is too narrow

    def set(self, flag: str, value: bool = True) -> None:
        """Takes effect with the next exchange."""
        self._flags[flag] = value

    def tick(self) -> Agreed | None:
        """Call it once a step. If an exchange is due, returns what the last one agreed on, and starts the next one
        unless that was a stop.

        Where gradients are accumulated, call it once a step of the optimizer: in between, they are in no checkpoint.
        """
        self._ticks += 1
        if self._ticks < self.every:
            return None
        return self._turn()

    def iterate(self, items: Iterable[Item]) -> Iterator[tuple[Item | None, Agreed | None]]:
        """Iterates where ranks may have different numbers of items (evaluation): each item, then what its tick returns.

        A rank that has no more items continues to exchange flags, with (None, agreed) for each, until no rank has any.
        The caller leaves when `agreed.stop` is set. All ranks leave at the same exchange.
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
        """Leaves out time since the last exchange that was not spent on steps but, for example, on a save."""
        self._since += seconds

    @property
    def agreement_s(self) -> float:
        """How long it takes, from the moment when one rank has seen a reason to stop, until all stop: two exchanges."""
        return 2 * (self.every + 1) * p95(self.steps)

    def drain(self) -> Agreed | None:
        """Waits for the exchange in flight, if any. Call it where all ranks end a phase."""
        self._ticks = 0
        return self._collect()

    def _turn(self) -> Agreed | None:
        elapsed = time.monotonic() - self._since
        agreed = self._collect()
        self._since = time.monotonic()
        measured = self._ticks and self.sent  # the time before the first exchange is set-up
        step_us = max(1, round(elapsed / self._ticks * 1e6)) if measured else 0
        if agreed is not None and agreed.step_s > 0:  # else it was not measured
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
        self._numbers[:] = array("q", (*self._flags.values(), -self.progress(), step_us, -round(self._way_s * 1e6)))
        for flag in ONE_SHOT:
            self._flags[flag] = False
        self.sent += 1
        self._sent_at = time.monotonic()
        # The group's own method: dist.all_reduce() spends another 50 µs on logging and checks.
        self._work = self.group.allreduce([self._vector], self._options) if self.group is not None else ()

    def _collect(self) -> Agreed | None:
        if self._work is None:
            return None
        if self._work:
            waiting = not self._work.is_completed()
            self._work.wait()
            # The last rank to send waits for no other rank: the least of all ranks' waits is the time of an exchange.
            self._way_s = time.monotonic() - self._sent_at if waiting else DECAY * self._way_s
        self._work = None
        *flags, progress, step_us, way_us = self._numbers
        told = {name: bool(value) for name, value in zip(self._flags, flags, strict=True)}
        return Agreed(told, -progress, step_us / 1e6, -way_us / 1e6)
