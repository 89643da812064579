"""Signature: the pattern of a known failure in a log, with its cause and remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Signature:
    """A known failure."""

    name: str
    pattern: str  # is searched for in the line of an error, and then in the few lines after it
    cause: str  # in words, as after "cause:"; no full stop
    remedy: str  # one or two sentences
    example: str  # a line or two of a real output, which the tests use
    consequence: bool = False  # the rank most likely only reports that another rank has failed
    vague: bool = False  # a match in the following lines counts more
    precedes: bool = False  # the line is printed before the traceback of its consequence

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)
