"""Faults of the controller, made on purpose: late answers, no answers, submissions that fail now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Faults:
    """The faults of the controller. Points in time are on the machine's monotonic clock."""

    slow_s: float = 0
    slow_until: float = 0
    away_until: float = 0
    flaky: float = 0  # fraction of submissions that fail, from 0 to 1
    seed: int = 0
    drawn: int = 0  # number of submissions for which `draw` was called

    @property
    def late_s(self) -> float:
        return self.slow_s if time.monotonic() < self.slow_until else 0

    @property
    def away(self) -> bool:
        return time.monotonic() < self.away_until

    def draw(self) -> bool:
        """Whether the next submission fails. The same seed makes the same submissions fail."""
        import random  # imported here because `random` is rarely needed and takes a while to load

        self.drawn += 1
        return self.flaky > 0 and random.Random(f"{self.seed}.{self.drawn}").random() < self.flaky
