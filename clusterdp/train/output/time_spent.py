"""TimeSpent: what the time of rank 0 goes to, for the account that `clusterdp goodput` makes of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

SHORTEST_S = 2.0  # between two reports; later a twentieth of the time so far: 120 lines in an hour, 190 in a day


class TimeSpent:
    """Seconds of each kind, which add up to the time since it was made. What comes before the end of the first step,
    such as a compilation, is start-up.

    Without a loop of job.loop() there are no steps here, and nothing is reported: the program's time is its own.
    """

    def __init__(self, report: Callable[..., None]):
        self.seconds = dict.fromkeys(("startup", "restore", "steps", "saves", "evaluation"), 0.0)
        self._report = report  # called as report(startup_s=.., restore_s=.., ...)
        self._stepped = False
        self._kind = "startup"
        self._began = self._at = monotonic()
        self._due = 0.0

    def turn(self, kind: str) -> None:
        """What runs from here on is `kind`."""
        now = monotonic()
        self.seconds[self._kind] += now - self._at
        self._at = now
        self._kind = kind if self._stepped or kind != "steps" else "startup"

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        before = self._kind
        self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)

    def took(self, kind: str, seconds: float) -> None:
        """The last `seconds` were `kind`, whatever else runs."""
        self.seconds[kind] += seconds
        self._at += seconds

    def step(self) -> None:
        """A step is over."""
        if not self._stepped:
            self._stepped = True
            self.turn("steps")
        now = monotonic()
        if now >= self._due:
            self._due = now + max(SHORTEST_S, (now - self._began) / 20)
            self.tell()

    def tell(self) -> None:
        if self._stepped:
            self.turn(self._kind)
            self._report(**{f"{kind}_s": round(seconds, 3) for kind, seconds in self.seconds.items()})
