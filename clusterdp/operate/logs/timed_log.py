"""TimedLog: one rank's log, as lines with times. Lines without one belong to the line before."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from clusterdp.operate.logs.since import SinceStart, start_since
from clusterdp.operate.logs.timestamps import time_in
from clusterdp.operate.logs.tracebacks import TracebackLines
from clusterdp.plainfile import reading
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.tail import Tail, start_of_last

Line = tuple[float, int, str]  # time, rank, text; with its \n, unless more of the line follows or nothing does
AT_FIRST = float("-inf")  # the time of lines before the first that has one
MEMORY = 8 << 20  # bytes of all logs that are read together
LONGEST = 256 << 10  # characters of a line that are kept back until its end has come
LONGEST_TRACEBACK = 1000  # lines
PATIENCE = 4  # looks for which the rest of a traceback is waited for
A_DAY = 86_400.0
BEFORE = 8 << 10  # bytes before the first line that is shown, in which its time is looked for


class TimedLog:
    """Lines come in the order of the file. So does their time: a clock that is set back does not change the order.

    `near`: when the attempt began; see time_in(). `problem`: why the file cannot be read; empty if it can.
    """

    def __init__(self, rank: int, path: Path, near: float | None = None):
        self.rank = rank
        self.tail = Tail(path)
        self.near = near
        self.cut = False  # it is shown from somewhere within
        self.time = AT_FIRST
        self._line = ""  # that has not ended
        self._held: list[Line] = []  # a traceback whose end has not come
        self._looks = 0
        self._traceback = TracebackLines()

    @property
    def path(self) -> Path:
        return self.tail.path

    def problem(self) -> str:
        try:
            with reading(self.path):
                return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)

    def begin_at_last(self, count: int) -> None:
        """Leave out all but the last `count` lines. The first of them may be of the time of a line before."""
        latest = self._latest()
        try:
            with reading(self.path) as file:
                offset = max(self.tail.offset, start_of_last(file, count))
                file.seek(max(0, offset - BEFORE))
                self._begin_at(offset)
                for line in file.read(offset - file.tell()).decode(errors="replace").split("\n"):
                    self._read_time(line, latest)
        except OSError:
            return

    def begin_since(self, since: float) -> SinceStart:
        """Leave out the lines from before that time, as far as it is known. See start_since()."""
        start = start_since(self.path, since)
        self._begin_at(start.offset)
        return start

    def _begin_at(self, offset: int) -> None:
        self.cut = offset > 0
        self.tail.offset = offset

    def _latest(self) -> float:
        """A time after this is none at which a line was printed."""
        return (modified(self.path) or 0.0) + A_DAY

    def text(self, final: bool, limit: int = 1 << 20) -> Iterator[str]:
        """What is new, as it is: whole lines, and pieces of those that are longer than `limit` bytes."""
        while text := self.tail.read(final, limit):
            yield text

    def lines(self, final: bool, limit: int) -> Iterator[Line]:
        """What is new, at most `limit` bytes in memory. Of a progress bar, which begins its line again and again, there
        is only the last state. A traceback comes once it is whole, or after some looks; with `final` at once."""
        latest = self._latest()
        new = False
        for text in self.text(final, limit):
            first, *more = text.replace("\0", "").split("\n")
            for part in more:
                new = True
                yield from self._timed(_last_state(self._line + first) + "\n", latest)
                self._line, first = "", part
            self._line = _last_state(self._line + first, open_=True)
            if len(self._line) > LONGEST:
                yield from self._timed(self._line, latest)
                self._line = ""
        self._looks = 0 if new else self._looks + 1
        if final and self._line:
            yield from self._timed(_last_state(self._line), latest)
            self._line = ""
        if final or self._looks >= PATIENCE:
            yield from self._release()

    @property
    def waits(self) -> bool:
        """Whether there is something that the next look may show though nothing new has come."""
        return bool(self._held)

    def _read_time(self, text: str, latest: float) -> None:
        found = time_in(text, self.near if self.time == AT_FIRST else self.time)
        if found is not None and found <= latest:
            self.time = max(self.time, found)

    def _timed(self, text: str, latest: float) -> Iterator[Line]:
        self._read_time(text, latest)
        line = self.time, self.rank, text
        if not self._held and not self._traceback.begins(text):
            yield line
        elif self._traceback.takes(text.rstrip("\n")) and self._traceback.open and len(self._held) < LONGEST_TRACEBACK:
            self._held.append(line)
        else:
            yield from self._release()
            yield line

    def _release(self) -> Iterator[Line]:
        held, self._held = self._held, []
        self._traceback = TracebackLines()
        yield from held


def merged(logs: Sequence[TimedLog], final: bool) -> Iterable[Line]:
    """What is new in all the logs, by time. The lines of one time, and those before a log's first time, stay together,
    rank by rank."""
    limit = min(1 << 20, max(4096, MEMORY // max(1, len(logs))))
    streams = [log.lines(final, limit) for log in logs]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0, 1))


def same_file(path: Path) -> Path:
    """What tells whether two names are of one file: with submitit the attempts of a job share one, by links."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _last_state(line: str, open_: bool = False) -> str:
    """`open_`: more of the line may follow. Then the \\r at its end counts."""
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return state + "\r" if open_ and line.endswith("\r") else state
