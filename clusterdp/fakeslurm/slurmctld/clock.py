"""The cluster's own time. It passes evenly, whatever is done to the machine's clock: a job that runs when that is set
forward by a day must not be taken for one that is out of time.
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
        """Seconds since 1970, as the cluster counts them."""
        return time.monotonic() + self._model.epoch + self._model.ahead_s

    @property
    def wrong(self) -> bool:
        """The machine's clock was set, or stood still: a laptop that sleeps, a restart."""
        return abs(_epoch() - self._model.epoch) > TOLERATED_S

    def set(self) -> None:
        """By the machine's clock; only for when nothing waits or runs that would notice."""
        self._model.epoch = _epoch()


def _epoch() -> float:
    """What the machine's clock showed when its monotonic one began."""
    return time.time() - time.monotonic()
