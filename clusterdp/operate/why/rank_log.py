"""RankLog: the end of what a rank printed, and the error in it. A log may have any size: 8 KiB of its end are read, and
further back only where they are nothing but consequences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from clusterdp.operate.why.match import LONGEST, LogError, errors, went_on
from clusterdp.plainfile import reading
from clusterdp.rundir.tail import end_of

LOOK = 8 * 1024  # bytes of the end of each log
FURTHER = 512 * 1024  # bytes of a log that ends in a flood of consequences
MOST_LINES = 15  # of an error that are shown


@dataclass(frozen=True)
class RankLog:
    """`own`: the last error that is not a consequence of another rank's. `echoes`: whether there is a consequence."""

    rank: int
    path: Path
    written: float  # when last
    size: int
    text: bytes  # the end of it
    own: LogError | None
    echoes: bool

    @cached_property
    def lines(self) -> list[bytes]:
        return self.text.split(b"\n")

    @property
    def silent(self) -> bool:
        """It says nothing of any error."""
        return self.own is None and not self.echoes

    def excerpt(self) -> list[str]:
        """The lines of the error; the last lines if there is none. None of a log that is empty."""
        if not self.text:
            return []
        if self.own is None:
            return _decoded(self.lines[-MOST_LINES:])
        after = self.own.at + 1
        while after < len(self.lines) and self.lines[after][:1] in (b"\t", b" ") and after < self.own.at + 5:
            after += 1  # an error of several lines
        first = max(self.own.begins, after - MOST_LINES)
        return _decoded(self.lines[first : max(after, min(len(self.lines), first + 2))])


def _decoded(lines: Sequence[bytes]) -> list[str]:
    return [line[:LONGEST].decode(errors="replace") for line in lines]


def read_log(rank: int, path: Path, look: int = LOOK) -> RankLog:
    """A log that is missing, or no file, is empty."""
    try:
        with reading(path) as file:
            stat = os.fstat(file.fileno())
            text = end_of(file, look).replace(b"\r", b"\n").rstrip()
    except OSError:
        return RankLog(rank, path, 0.0, 0, b"", None, False)
    own, echoes = None, False
    for error in errors(text):
        if not error.consequence:
            own = error if echoes or not went_on(text.split(b"\n"), error) else None
            break
        echoes = True
    return RankLog(rank, path, stat.st_mtime, stat.st_size, text, own, echoes)


def looked_further(log: RankLog) -> RankLog:
    """The same log, read as far back as a flood of consequences may reach."""
    return read_log(log.rank, log.path, FURTHER) if log.size > LOOK and log.own is None and log.echoes else log
