"""The page: the position of this rank, as four numbers in memory that its watcher, another process, reads.

    page.shared()              # before any call of current(), which would return memory of this process alone
    page.current()[STEP] = 7   # 25 ns
    with page.during(SAVE): ...

A changed number is a sign of progress. The page holds no times, because the watcher reads the page often enough to know
when a number has changed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

# The four numbers: steps done; the phase; items of an evaluation that are done; steps done when this loop began.
STEP, PHASE, SIGNS, FIRST = range(4)
BYTES = 4 * 8
# The phases in the order in which a rank goes through them between two counts of a step.
PHASES = (
    "start",
    "restore",
    "agreement",
    "save",
    "evaluation",
    "program",
    "end",
    "data",
    "step",
    "backward",
    "optimizer",
    "metrics",
)
START, RESTORE, AGREEMENT, SAVE, EVALUATION, PROGRAM, END, DATA, STEP_BODY, BACKWARD, OPTIMIZER, METRICS = range(12)
# The lap of a stopwatch that has ended -> the phase that follows it.
AFTER = {
    "data": STEP_BODY,
    "copy": STEP_BODY,
    "forward": BACKWARD,
    "backward": OPTIMIZER,
    "optimizer": METRICS,
    "metrics": METRICS,
    "step": AGREEMENT,
    "agreement": AGREEMENT,
    "checkpoint": DATA,
}
FIRST_STEP = "first step"  # the name of a loop's first step in an attempt, which opens the data and may compile
LONG = (FIRST_STEP, "start", "restore", "save", "evaluation", "program")  # phases that may take long
_current: MutableSequence[int] = [0, START, 0, -1]


def current() -> MutableSequence[int]:
    return _current


def shared() -> int:
    """Makes the page readable by another process, and returns its file descriptor. Raises OSError if memory is full."""
    global _current
    fd = memory("clusterdp-page")
    os.ftruncate(fd, BYTES)
    page: Any = memoryview(mmap.mmap(fd, BYTES)).cast("q")
    for slot, number in enumerate(_current):
        page[slot] = number
    _current = page
    return fd


def memory(name: str) -> int:
    """Returns the descriptor of a new file in memory. On Linux, /proc shows the name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


def enter(phase: int) -> None:
    _current[PHASE] = phase


@contextmanager
def as_before() -> Iterator[None]:
    """Restores the present phase at the end of the with block."""
    before = _current[PHASE]
    try:
        yield
    finally:
        _current[PHASE] = before


@contextmanager
def during(phase: int) -> Iterator[None]:
    """Sets the phase for the with block, and restores the earlier phase afterwards."""
    with as_before():
        _current[PHASE] = phase
        yield


def with_signs(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items, and counts each of them in the page as a sign of progress."""
    page = _current
    for item in items:
        page[SIGNS] += 1
        yield item


def phase_name(number: int, *, first: bool) -> str:
    return FIRST_STEP if first and number >= DATA else PHASES[number]
