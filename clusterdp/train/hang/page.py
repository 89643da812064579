"""The page: the position of this rank, as four numbers in memory that its watcher, another process, reads.

    page.shared()              # before any call of current(), which would return memory of this process alone
    page.current()[STEP] = 7   # 25 ns
    with page.during(SAVE): ...

A changed number is a sign of progress. The page holds no times, because the watcher reads it often enough.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

# Steps done; the phase; items of an evaluation that are done; steps done when this loop began.
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
FIRST_STEP = "first step"  # the first step of a loop in an attempt opens the data, and may compile
LONG = (FIRST_STEP, "start", "restore", "save", "evaluation", "program")  # phases that may take long
_current: MutableSequence[int] = [0, START, 0, -1]


def current() -> MutableSequence[int]:
    return _current


def shared() -> int:
    """Makes the page readable by another process and returns its file descriptor. Raises OSError without memory."""
    global _current
    fd = _memory()
    os.ftruncate(fd, BYTES)
    page: Any = memoryview(mmap.mmap(fd, BYTES)).cast("q")
    for slot, number in enumerate(_current):
        page[slot] = number
    _current = page
    return fd


def _memory() -> int:
    """Returns the descriptor of a file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("clusterdp-page")
    import tempfile

    with tempfile.TemporaryFile() as file:  # macOS
        return os.dup(file.fileno())


def enter(phase: int) -> None:
    _current[PHASE] = phase


@contextmanager
def as_before() -> Iterator[None]:
    """Restores the phase after the block."""
    before = _current[PHASE]
    try:
        yield
    finally:
        _current[PHASE] = before


@contextmanager
def during(phase: int) -> Iterator[None]:
    """Sets the phase for the block, and restores it afterwards."""
    with as_before():
        _current[PHASE] = phase
        yield


def with_signs(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items. Each item is a sign of progress."""
    page = _current
    for item in items:
        page[SIGNS] += 1
        yield item


def phase_name(number: int, *, first: bool) -> str:
    return FIRST_STEP if first and number >= DATA else PHASES[number]
