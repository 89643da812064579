"""TracebackLines: finds where a traceback begins and ends in a log."""

from __future__ import annotations

import re

SIGNS = ("Traceback (most recent call last)", "Fatal Python error: ")
CHAIN = re.compile(r"(During handling of|The above exception was)\b")
OF_A_CRASH = re.compile(r"(Current thread|Thread) 0x|Stack \(|Extension modules:|<.*>$")
FRAMES, CRASH, GROUP, EXCEPTION, CHAINED = range(1, 6)


class TracebackLines:
    """Finds where a traceback begins and ends, in lines that are given one by one. A line may begin with a launcher's
    label, such as torchrun's `[rank0]: `."""

    def __init__(self) -> None:
        self.state = 0  # 0: the last line belongs to no traceback
        self.prefix = ""

    @property
    def open(self) -> bool:
        """Whether the current traceback still lacks its exception."""
        return self.state not in (0, EXCEPTION)

    @property
    def in_frames(self) -> bool:
        """Whether each line that begins with a space belongs to the traceback."""
        return self.state == FRAMES and not self.prefix

    def takes(self, line: str) -> bool:
        """Returns whether the line belongs to a traceback, also as its first line. An empty line after a traceback
        belongs to the traceback, because a chained traceback may follow."""
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
