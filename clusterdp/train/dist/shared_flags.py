"""SharedFlags: what one rank has noticed becomes what all ranks act on, at the same step.

A word is a small vector that is reduced by MAX over a gloo group of its own. It is sent from the main thread, is looked
at when the next one is due, and never waited for in between: no collective in a signal handler or a second thread, no
GPU sync. One word is in flight at most, and every rank sends the same number of them, because whether another one
follows is decided from agreed words alone.

A word goes out every `k` steps, and k follows from the agreed (slowest) step time so that k steps take about 200 ms.
A stop is known on all ranks within two words. Sending one costs the main thread 50 to 150 µs; together with gloo's
threads it takes a millisecond from two ranks that have all of two cores busy. Gloo's all-reduce is a ring: over
thousands of ranks a word may be on its way for a second (reckoned, not seen). Where it had to be waited for, k steps
become longer than its way, but never longer than 2 s.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from clusterdp.train.dist.stop import StopSignal

Item = TypeVar("Item")

STOPS = ("term", "time")  # reasons to stop; the first that is set counts
# save: one is due by the clock; enough: no more training is wanted; busy: this rank still has items
FLAGS = (*STOPS, "save", "enough", "busy")
ONE_SHOT = ("save",)  # told once: cleared when sent
PERIOD_S, LONGEST_S = 0.2, 2.0  # of k steps; the longest if words are that long on their way: a stop must come soon
FORGOTTEN = 0.9  # what is left of a way that nobody had to wait for; else every second word would be waited for
MOST_STEPS = 32  # k is never more: should steps become slow all of a sudden, a stop must still come soon


@dataclass(frozen=True)
class Agreed:
    """What all ranks know. A flag is true if any rank had set it; `progress` is the least of all ranks' numbers."""

    flags: dict[str, bool]
    progress: int
    step_s: float  # of the slowest rank, on average since the word before
    way_s: float  # how long words are on their way, where that is longer than k steps

    def __getitem__(self, flag: str) -> bool:
        return self.flags[flag]

    @property
    def stop(self) -> str | None:
        return next((reason for reason in STOPS if self.flags[reason]), None)


class SharedFlags:
    """All methods are called by the main thread, and on all ranks alike.

    group: a gloo group used for nothing else while the word is in use (None: a single process, agreeing with itself).
    stop: asked before each word is sent.
    """

    def __init__(self, group: dist.ProcessGroup | None, stop: StopSignal | None = None, flags: Sequence[str] = FLAGS):
        self.group = group
        self.stop = stop or StopSignal()
        self.progress: Callable[[], int] = lambda: 0  # how far this rank's saves have come; asked before each word
        self.save_s = 0.0  # how long a save takes, for the margin before the end of the job's time
        self.every = 1  # k
        self.sent = 0
        self._flags = dict.fromkeys(flags, False) | {"busy": True}
        self._numbers = array("q", bytes(8 * (len(self._flags) + 3)))
        self._vector = torch.frombuffer(self._numbers, dtype=torch.int64)  # the same memory; is slower to write to
        self._work: Any = None
        self._sent_at = self._way_s = 0.0
        self._ticks = 0
        self._since = time.monotonic()
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.MAX  # type: ignore[assignment]  # torch's stub is too narrow

    def set(self, flag: str, value: bool = True) -> None:
        """Goes out with the next word."""
        self._flags[flag] = value

    def tick(self) -> Agreed | None:
        """Once a step. The word before, where one is due; then the next one is sent unless that one says stop.

        Where gradients are accumulated, once a step of the optimizer: in between, they are in no checkpoint.
        """
        self._ticks += 1
        if self._ticks < self.every:
            return None
        return self._turn()

    def together(self, items: Iterable[Item]) -> Iterator[tuple[Item | None, Agreed | None]]:
        """Iterates where ranks may have uneven numbers of items (evaluation): each item, then what its tick says.

        A rank that is through goes on sending words, with (None, agreed) for each, until all are through. The caller
        leaves when `agreed.stop` is set, and all ranks leave at the same word.
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
        """Time since the last word that went into something else than steps, such as a save."""
        self._since += seconds

    def drain(self) -> Agreed | None:
        """Wait for the word in flight, if any; call it where all ranks end a phase."""
        self._ticks = 0
        return self._collect()

    def _turn(self) -> Agreed | None:
        elapsed = time.monotonic() - self._since
        agreed = self._collect()
        self._since = time.monotonic()
        measured = self._ticks and self.sent  # the time before the first word is set-up
        step_us = max(1, round(elapsed / self._ticks * 1e6)) if measured else 0
        if agreed is not None and agreed.step_s > 0:  # else it was not measured
            period_s = min(max(PERIOD_S, 2 * agreed.way_s), LONGEST_S)
            self.every = max(1, min(MOST_STEPS, round(period_s / agreed.step_s)))
            self.stop.reserve_s = 2 * (self.every + 1) * agreed.step_s + self.save_s
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
            # Who sent last has waited for the way alone, not for other ranks: all ranks' least is the way.
            self._way_s = time.monotonic() - self._sent_at if waiting else FORGOTTEN * self._way_s
        self._work = None
        *flags, progress, step_us, way_us = self._numbers
        told = {name: bool(value) for name, value in zip(self._flags, flags, strict=True)}
        return Agreed(told, -progress, step_us / 1e6, -way_us / 1e6)
