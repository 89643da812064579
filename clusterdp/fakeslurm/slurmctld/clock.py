"""The cluster's own clock. It runs evenly whatever is done to the machine's clock: if that is set forward by a day, no
running job is out of time.
"""

from __future__ import annotations

import time

from clusterdp.fakeslurm.core.model import Model

TOLERATED_S = 1.0


class Clock:
    def __init__(self, model: Model):
        self._model = model
        if not model.epoch:
            self.set()

    def __call__(self) -> float:
        """Seconds since 1970 by the cluster's clock."""
        return time.monotonic() + self._model.epoch + self._model.ahead_s

    @property
    def wrong(self) -> bool:
        """Whether the machine's clock was set or stood still, as when a laptop sleeps or restarts."""
        return abs(_epoch() - self._model.epoch) > TOLERATED_S

    def set(self) -> None:
        """Take the machine's time; only when nothing waits or runs that would notice."""
        self._model.epoch = _epoch()


def _epoch() -> float:
    """What the machine's clock showed when its monotonic clock began."""
    return time.time() - time.monotonic()
