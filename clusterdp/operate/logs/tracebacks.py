"""TracebackLines: which lines of a log are one traceback: from `Traceback` to the exception that it ends with."""

from __future__ import annotations

import re

SIGNS = ("Traceback (most recent call last)", "Fatal Python error: ")
CHAIN = re.compile(r"(During handling of|The above exception was)\b")
OF_A_CRASH = re.compile(r"(Current thread|Thread) 0x|Stack \(|Extension modules:|<.*>$")
FRAMES, CRASH, GROUP, EXCEPTION, CHAINED = range(1, 6)


class TracebackLines:
    """Lines are handed in one by one, in their order.

    What a launcher puts before each line, such as torchrun's `[rank0]: `, may be there."""

    def __init__(self) -> None:
        self.state = 0  # outside of any
        self.prefix = ""

    @property
    def open(self) -> bool:
        """Whether its exception has not come yet."""
        return self.state not in (0, EXCEPTION)

    def takes(self, line: str) -> bool:
        """Whether the line belongs to a traceback; the first of one does, too. Empty lines after it do, because another
        may follow that is part of it."""
        if self.state:
            bare = line.removeprefix(self.prefix) if self.prefix else line
            blank = not bare.strip() or line.strip() == self.prefix.strip() != ""
            self.state = self._next(bare, blank)
        if not self.state:
            self._begin(line)
        return bool(self.state)

    def begins(self, line: str) -> bool:
        return any(sign in line for sign in SIGNS)

    def _begin(self, line: str) -> None:
        for sign in SIGNS:
            at = line.find(sign)
            if 0 <= at <= 80:
                before = line[:at]
                self.prefix = before
                self.state = CRASH if sign.startswith("Fatal") else GROUP if "Exception Group" in before else FRAMES

    def _next(self, bare: str, blank: bool) -> int:
        if blank:
            return self.state
        if self.state == GROUP:
            return GROUP if bare[0] in " +|" else 0
        if self.state == CRASH:
            return CRASH if bare[0] == " " or OF_A_CRASH.match(bare) else 0
        if self.state == FRAMES:
            return FRAMES if bare[0] in " \t" else EXCEPTION
        if self.state == EXCEPTION:
            return CHAINED if CHAIN.match(bare) else 0
        return 0 if not self.begins(bare) else FRAMES
