"""Why a fault has not landed."""

from __future__ import annotations


class Missed(Exception):
    """The fault has not landed: the run was over first, or what it waits for did not come."""


class TooQuick(Missed):
    """What it waits for is over too quickly. If that is so each time, the fault cannot be made: why says so."""

    def __init__(self, text: str, why: str):
        super().__init__(text)
        self.why = why


class Inapplicable(Exception):
    """The fault cannot happen to this job, or cannot be made on this machine. Its text is the reason."""
