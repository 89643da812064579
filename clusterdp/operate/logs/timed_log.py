"""TimedLog: the log of one rank, as lines with times. A line without a time gets the time of the preceding line."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from clusterdp.plainfile import reading
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.tail import CHUNK, Tail, start_of_last

Line = tuple[float, int, str]  # time, rank, text; parts of a line and the file's last line may lack the \n
AT_FIRST = float("-inf")  # stands for the unknown time of lines before the first line with a time
MEMORY = 8 << 20  # bytes of all logs that are in memory at a time
LONGEST = 256 << 10  # longest unfinished line in characters; a longer line is yielded in parts
LONGEST_TRACEBACK = 1000  # lines
PATIENCE = 4  # number of polls for which an unfinished traceback is held back
A_DAY = 86_400.0
BEFORE = 8 << 10  # bytes to search for the time of the first line shown; they lie before this line
LOOK_FOR_TIMES = 4 << 20  # the search for times ends after so many bytes of lines without a time
LOOK = 40  # a time is found only in the first characters of a line
ANY = re.compile(r"\d\d:\d\d:\d\d")
DATE = r"(?P<year>[12]\d{3})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
US_DATE = r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>[12]\d{3})"  # format in the examples of Hugging Face
CLOCK = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d|60)(?:[.,](?P<part>\d{1,9}))?"
FORMS = (
    re.compile(rf"(?<!\d){DATE}[T ]{CLOCK} ?(?P<zone>Z|[+-]\d\d:?\d\d\b)?"),  # ISO 8601, Python's logging, NCCL, Slurm
    re.compile(rf"(?<!\d){US_DATE}[ T,]+{CLOCK}"),
    re.compile(rf"(?:^|\[)[A-Z](?P<month>\d\d)(?P<day>\d\d) {CLOCK}"),  # glog, the format of torch's C++ code
    re.compile(rf"^(?:\x1b\[[\d;]*m)*\[?{CLOCK}(?![\d:<])"),  # a time of day alone, at the start of the line
)
HALF_A_DAY, HALF_A_YEAR = 43_200.0, 180 * 86_400.0
SIGNS = ("Traceback (most recent call last)", "Fatal Python error: ")
CHAIN = re.compile(r"(During handling of|The above exception was)\b")
OF_A_CRASH = re.compile(r"(Current thread|Thread) 0x|Stack \(|Extension modules:|<.*>$")
FRAMES, CRASH, GROUP, EXCEPTION, CHAINED = range(1, 6)


class TimedLog:
    """The log of one rank, read as it grows. Lines stay in the order of the file. The times of lines never decrease,
    even if a clock was set back.

    `near` is the time at which the attempt began; see time_in(). `problem` returns the reason why the file cannot be
    read.
    """

    def __init__(self, rank: int, path: Path, near: float | None = None):
        self.rank = rank
        self.tail = Tail(path)
        self.near = near
        self.cut = False  # True: the first part of the file is not shown
        self.time = AT_FIRST
        self._line = ""  # the text of an unfinished line
        self._held: list[Line] = []  # the lines of an unfinished traceback
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
        """Skips all lines except the last `count`. The first line that is kept may get its time from a skipped line."""
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
        """Skips the lines that were printed before `since`, as far as their times are known. See start_since()."""
        start = start_since(self.path, since)
        self._begin_at(start.offset)
        return start

    def _begin_at(self, offset: int) -> None:
        self.cut = offset > 0
        self.tail.offset = offset

    def _latest(self) -> float:
        """Returns the latest credible time: a later time in a line is not when the line was printed."""
        return (modified(self.path) or 0.0) + A_DAY

    def text(self, final: bool, limit: int = 1 << 20) -> Iterator[str]:
        """Yields the file's new text unchanged, in whole lines. A line longer than `limit` bytes comes in pieces."""
        while text := self.tail.read(final, limit):
            yield text

    def lines(self, final: bool, limit: int) -> Iterator[Line]:
        """Yields the file's new lines, with at most `limit` bytes in memory. Of a progress bar, which overwrites its
        line many times, only the last state is yielded. A traceback is yielded when it is complete, after PATIENCE
        polls, or if `final` is true."""
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
        """Whether the next poll may yield lines although the file has no new text."""
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
    """Returns the new lines of all logs, ordered by time. Lines with the same time are ordered by rank, and so are the
    lines before the first time in each log."""
    limit = min(1 << 20, max(4096, MEMORY // max(1, len(logs))))
    streams = [log.lines(final, limit) for log in logs]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0, 1))


def same_file(path: Path) -> Path:
    """Returns the file that a link names: with submitit, the logs of all attempts of a job are links to one file."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _last_state(line: str, open_: bool = False) -> str:
    """Returns the text after the last \\r. With `open_`, the line may continue, and a \\r at its end is kept."""
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return state + "\r" if open_ and line.endswith("\r") else state


class SinceStart(NamedTuple):
    """The result of start_since(): a place in a log. If `timed`, all lines from `offset` on are new enough. If not,
    some of these lines may be older, because lines without a time get the time of the file's last change."""

    offset: int
    timed: bool


def start_since(path: Path, since: float) -> SinceStart:
    """Returns where the lines begin that were printed after `since`. If the file's last change is older, the file is
    skipped without being opened."""
    changed = modified(path)
    try:
        if changed is None:
            return SinceStart(0, True)
        if changed < since:
            return SinceStart(path.stat().st_size, True)
        with reading(path) as file:
            return _search(file, since, changed)
    except OSError:
        return SinceStart(0, True)  # show_logs.begin() prints that the file cannot be read


def _search(file: BinaryIO, since: float, near: float) -> SinceStart:
    size = file.seek(0, 2)
    at, first = size, None  # `first` is the offset of the earliest line that is new enough
    while at > 0:
        start = max(0, at - CHUNK)
        file.seek(start)
        data = file.read(at - start)
        if start and (cut := data.find(b"\n") + 1):  # the next chunk has the start of this line
            start, data = start + cut, data[cut:]
        end = start + len(data)
        for line in reversed(data.splitlines(keepends=True)):
            begin = end - len(line)
            said = time_in(line[:200].decode(errors="replace"), near)
            if said is not None and said < since:
                if first is None:
                    return SinceStart(end, timed=end == size)
                return SinceStart(first, timed=True)
            if said is not None:
                first, near = begin, said
            end = begin
        if start >= at or (first is None and size - start > LOOK_FOR_TIMES):
            break
        at = start
    return SinceStart(0 if first is None or at <= 0 else first, timed=first is not None or size == 0)


def time_in(line: str, near: float | None) -> float | None:
    """Returns the time in a line, in seconds since 1970; None if the line has no time. A time without a zone is in
    local time.

    `near` is a known time that is less than half a day from the line's time (half a year, for a date without a year).
    If `near` is None, a time without a day or a year counts as no time.
    """
    if not ANY.search(line, 0, LOOK + 20):
        return None
    for form in FORMS:
        found = form.search(line, 0, LOOK + 40)
        if found and found.start() <= LOOK:
            try:
                return _seconds(found.groupdict(), near)
            except (ValueError, OverflowError):  # a date such as the 45th of a month
                return None
    return None


def without_time(line: str) -> str:
    """Returns the line without its time, if time_in() finds a time."""
    if not ANY.search(line, 0, LOOK + 20):
        return line
    for form in FORMS:
        found = form.search(line, 0, LOOK + 40)
        if found and found.start() <= LOOK:
            return line[: found.start()] + line[found.end() :]
    return line


def _seconds(said: dict[str, str | None], near: float | None) -> float | None:
    clock = int(said["hour"] or 0), int(said["minute"] or 0)
    rest = int(said["second"] or 0) + float(f"0.{said['part'] or 0}")
    if "month" not in said:
        return None if near is None else _on_the_nearest_day(near, *clock) + rest
    month, day = int(said["month"] or 0), int(said["day"] or 0)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError
    if "year" not in said:
        return None if near is None else _in_the_nearest_year(near, month, day, *clock) + rest
    minute = _minute(int(said["year"] or 0), month, day, *clock, said.get("zone") or "")
    return minute + rest


@lru_cache(maxsize=1024)  # the times of thousands of lines may have the same minute
def _minute(year: int, month: int, day: int, hour: int, minute: int, zone: str) -> float:
    if not zone:
        return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    from calendar import timegm

    seconds = timegm((year, month, day, hour, minute, 0))
    if zone == "Z":
        return seconds
    east = 60 * (60 * int(zone[1:3]) + int(zone[-2:]))
    return seconds - east if zone[0] == "+" else seconds + east


def _on_the_nearest_day(near: float, hour: int, minute: int) -> float:
    year, month, day = time.localtime(near)[:3]
    found = _minute(year, month, day, hour, minute, "")
    if abs(found - near) > HALF_A_DAY:
        return _minute(year, month, day + (1 if found < near else -1), hour, minute, "")  # mktime() accepts a 32nd day
    return found


def _in_the_nearest_year(near: float, month: int, day: int, hour: int, minute: int) -> float:
    year = time.localtime(near)[0]
    found = _minute(year, month, day, hour, minute, "")
    if abs(found - near) > HALF_A_YEAR:
        return _minute(year + (1 if found < near else -1), month, day, hour, minute, "")
    return found


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
