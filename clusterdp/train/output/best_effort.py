"""Writes all files except checkpoints to a disk that may be full.

    with best_effort_file:              # a record that cannot be written is lost; a warning is printed once
        append_line(path, record)

    retry_while_full(lambda: write_durably(outcome, text), outcome)      # waits for room on the disk

For checkpoints, see SaveSchedule.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Container
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from clusterdp.train.output.say import say

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)
LONGEST_WAIT_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0


class BestEffortFile:
    """Suppresses an OSError while one file is written: metrics or a ledger must not end a training.

    errors: the error numbers that are suppressed; default: all."""

    def __init__(self, path: Path | str, errors: Container[int | None] | None = None):
        self.path, self.errors = path, errors
        self.lost = 0  # number of records in a row that were not written

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if error is None and self.lost:
            say(f"clusterdp: {self.path}: can be written again; {self.lost} records were lost.", error=True)
            self.lost = 0
        if not isinstance(error, OSError) or (self.errors is not None and error.errno not in self.errors):
            return False
        self.lost += 1
        if self.lost == 1:
            say(
                f"clusterdp: {self.path}: {error.strerror or error}. What goes there is lost until it can be written "
                "again; the training goes on. Free some space, or see who may write there.",
                error=True,
            )
        return True


def retry_while_full(write: Callable[[], T], path: Path, seconds: float = LONGEST_WAIT_S) -> T:
    """Calls `write` and returns its result. While the disk is full, repeats the call for up to `seconds` and prints a
    warning once. Raises the OSError when this time is over, or at once if the error is not a full disk."""
    deadline, pause = time.monotonic() + seconds, FIRST_PAUSE_S
    said = False
    while True:
        try:
            return write()
        except OSError as error:
            left = deadline - time.monotonic()
            if error.errno not in FULL or left <= 0:
                raise
            if not said:
                said = True
                say(
                    f"clusterdp: {path}: {error.strerror}. The run needs it, and waits up to {seconds:.0f} s for room. "
                    "Free some space.",
                    error=True,
                )
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE_S)
