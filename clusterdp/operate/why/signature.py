"""Signature: what a known failure looks like in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Signature:
    """`pattern` is searched for in the line of an error, and then in the few lines after it. `consequence`: a rank that
    says so most likely only reports that another one has failed."""

    name: str
    pattern: str
    cause: str  # in words, as after "cause:"; no full stop
    remedy: str  # what to do, as one or two sentences
    example: str  # of a real output; the tests find the signature by it
    consequence: bool = False
    vague: bool = False  # what the lines after it say counts more
    precedes: bool = False  # it is printed before the traceback of what follows from it

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)
