"""Writing to a disk that may be full, for everything but checkpoints.

    with best_effort_file:              # a record that cannot be written here is lost, and that is said once
        append_line(path, record)

    retry_while_full(lambda: write_durably(outcome, text), outcome)      # waits until it can be written

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
    """Swallows an OSError while one file is written: a training does not end for its metrics or its ledger.

    errors: the error numbers that are swallowed; default: all."""

    def __init__(self, path: Path | str, errors: Container[int | None] | None = None):
        self.path, self.errors = path, errors
        self.lost = 0  # in a row

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
    """Call `write` and return its result. While the disk is full, it is tried again, for up to `seconds`, and that is
    said once. Raises the OSError after that, and at once if waiting does not help."""
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
