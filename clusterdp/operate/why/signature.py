"""Signature: the pattern by which a log shows a known failure, with the failure's cause and remedy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Signature:
    """A known failure, and the pattern that finds it in a log."""

    name: str
    pattern: str  # searched for in the line of an error, then in the few lines after that line
    cause: str  # a phrase that can follow "cause:", without a full stop
    remedy: str  # one or two sentences
    consequence: bool = False  # the rank most likely only reports that another rank has failed
    vague: bool = False  # another signature that matches in the following lines counts more
    precedes: bool = False  # the matching line is printed before the traceback that follows from it

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)
