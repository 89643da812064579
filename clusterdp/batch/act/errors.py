"""Errors: the stderr of srun, and srun's line about the first task that has failed."""

import math
import os
import time
from typing import Callable, Tuple

from ..decide.evidence import first_to_exit

GRACE_S = 0.5  # seconds between the first failure of a task and the end of the others, which may print their errors
KILLED_GRACE_S = 0.1  # the same after a kill: the errors of the others are about the lost rank
KILLED = "Killed"


class Errors:
    """Copies srun's stderr to the job's output. how: srun's words about the end of the first task that has failed.
    holds: whether the lines wait, because the step may never become that of the ranks.

    A pipe, because the job's output may also have lines of another srun, which launch.setup has started."""

    def __init__(self, holds: bool = False) -> None:
        self.how = ""
        self.holds = holds
        self.grace_s: float = GRACE_S
        self.on_failure: Callable[[], None] = lambda: None
        self.reading, self.writing = os.pipe()
        self.open: Tuple[int, ...] = (self.reading,)  # empty after the end of the stream
        os.set_blocking(self.reading, False)
        self._held = b""
        self._rest = b""  # the begin of a line
        self._failed_at = 0.0

    def copy(self) -> None:
        """Copies all that srun has written so far."""
        while True:
            try:
                said = os.read(self.reading, 65536)
            except BlockingIOError:
                said = None
            if said == b"":
                self.open = ()
            self._held += said or b""
            self._find(said or b"")
            if not self.holds:
                self._write()
            if not said:
                return

    def _write(self) -> None:
        said, self._held = self._held, b""
        try:
            os.write(2, said)
        except OSError:
            pass  # if the disk is full, the lines are lost

    def _find(self, said: bytes) -> None:
        if self.how:
            return
        lines, _, self._rest = (self._rest + said).rpartition(b"\n")
        self.how = first_to_exit(os.fsdecode(lines))
        self._failed_at, self.grace_s = time.monotonic(), grace_s(self.how)
        if self.how:
            self.on_failure()

    @property
    def left_s(self) -> float:
        """Seconds until is_due() may become true."""
        return max(0.0, self._failed_at + self.grace_s - time.monotonic()) if self.how else math.inf

    def is_due(self) -> bool:
        """Returns whether a task has failed `grace_s` ago."""
        self.copy()
        return self.left_s <= 0

    def close(self) -> None:
        self.copy()
        os.close(self.reading)


def grace_s(how: str) -> float:
    """Returns the seconds between the first failure of a task and the end of the others. how: srun's words about it."""
    return KILLED_GRACE_S if how == KILLED else GRACE_S
