"""Faults of the controller, made on purpose: it answers late, or not at all, or fails a submission now and then."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Faults:
    """The faults of the controller; times are of the machine's monotonic clock."""

    slow_s: float = 0
    slow_until: float = 0
    away_until: float = 0
    flaky: float = 0  # the part of all submissions that fail
    seed: int = 0
    drawn: int = 0  # submissions decided so far

    @property
    def late_s(self) -> float:
        return self.slow_s if time.monotonic() < self.slow_until else 0

    @property
    def away(self) -> bool:
        return time.monotonic() < self.away_until

    def draw(self) -> bool:
        """Whether the next submission fails: the same ones for the same seed."""
        import random  # rarely needed, and it takes a while to load

        self.drawn += 1
        return self.flaky > 0 and random.Random(f"{self.seed}.{self.drawn}").random() < self.flaky
