"""TimedLog: one rank's log, as lines with times. A line without a time has the time of the line before it."""

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

Line = tuple[float, int, str]  # time, rank, text; the text ends in \n, unless it is a part of a line or the file's end
AT_FIRST = float("-inf")  # the time of lines before the first line with a time
MEMORY = 8 << 20  # bytes of all logs that are read together
LONGEST = 256 << 10  # characters of an unfinished line that are held back
LONGEST_TRACEBACK = 1000  # lines
PATIENCE = 4  # polls during which a traceback waits for its rest
A_DAY = 86_400.0
BEFORE = 8 << 10  # bytes before the first shown line that are searched for its time
LOOK_FOR_TIMES = 4 << 20  # bytes of lines without a time, after which the search for times ends
LOOK = 40  # the time of a line begins within this number of characters
ANY = re.compile(r"\d\d:\d\d:\d\d")
DATE = r"(?P<year>[12]\d{3})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
US_DATE = r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>[12]\d{3})"  # in Hugging Face's examples
CLOCK = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d|60)(?:[.,](?P<part>\d{1,9}))?"
FORMS = (
    re.compile(rf"(?<!\d){DATE}[T ]{CLOCK} ?(?P<zone>Z|[+-]\d\d:?\d\d\b)?"),  # ISO, Python's logging, NCCL, Slurm
    re.compile(rf"(?<!\d){US_DATE}[ T,]+{CLOCK}"),
    re.compile(rf"(?:^|\[)[A-Z](?P<month>\d\d)(?P<day>\d\d) {CLOCK}"),  # glog, the format of torch's C++ code
    re.compile(rf"^(?:\x1b\[[\d;]*m)*\[?{CLOCK}(?![\d:<])"),  # only a time of day, at the start of the line
)
HALF_A_DAY, HALF_A_YEAR = 43_200.0, 180 * 86_400.0
SIGNS = ("Traceback (most recent call last)", "Fatal Python error: ")
CHAIN = re.compile(r"(During handling of|The above exception was)\b")
OF_A_CRASH = re.compile(r"(Current thread|Thread) 0x|Stack \(|Extension modules:|<.*>$")
FRAMES, CRASH, GROUP, EXCEPTION, CHAINED = range(1, 6)


class TimedLog:
    """Lines come in the order of the file. Their times never fall: a clock that is set back does not change the order.

    `near`: the time at which the attempt began; see time_in(). `problem`: the reason why the file cannot be read.
    """

    def __init__(self, rank: int, path: Path, near: float | None = None):
        self.rank = rank
        self.tail = Tail(path)
        self.near = near
        self.cut = False  # the begin of the file is not shown
        self.time = AT_FIRST
        self._line = ""  # an unfinished line
        self._held: list[Line] = []  # an unfinished traceback
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
        """Skips all but the last `count` lines. The first of these may get its time from a skipped line."""
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
        """Skips the lines from before `since`, as far as their times are known. See start_since()."""
        start = start_since(self.path, since)
        self._begin_at(start.offset)
        return start

    def _begin_at(self, offset: int) -> None:
        self.cut = offset > 0
        self.tail.offset = offset

    def _latest(self) -> float:
        """Returns a limit: a later time in a line is not the time at which the line was printed."""
        return (modified(self.path) or 0.0) + A_DAY

    def text(self, final: bool, limit: int = 1 << 20) -> Iterator[str]:
        """Yields the new text unchanged: whole lines, and pieces of lines that are longer than `limit` bytes."""
        while text := self.tail.read(final, limit):
            yield text

    def lines(self, final: bool, limit: int) -> Iterator[Line]:
        """Yields the new lines, with at most `limit` bytes in memory. A progress bar, which overwrites its line many
        times, comes only in its last state. A traceback comes when it is complete, after PATIENCE polls, or with
        `final`."""
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
        """Whether the next poll may yield lines without new text in the file."""
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
    """Returns the new lines of all logs, by time. Lines with the same time, and lines before a log's first time, stay
    together, rank by rank."""
    limit = min(1 << 20, max(4096, MEMORY // max(1, len(logs))))
    streams = [log.lines(final, limit) for log in logs]
    return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=itemgetter(0, 1))


def same_file(path: Path) -> Path:
    """Returns the file behind a link: with submitit, the logs of a job's attempts are links to one file."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _last_state(line: str, open_: bool = False) -> str:
    """Returns the text after the last \\r. `open_`: more of the line may follow, and a \\r at its end is kept."""
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return state + "\r" if open_ and line.endswith("\r") else state


class SinceStart(NamedTuple):
    """The place in a log that start_since() found. `timed`: the lines from `offset` on are not older. Else some may be
    older, because lines without times have only the time of the file's last change."""

    offset: int
    timed: bool


def start_since(path: Path, since: float) -> SinceStart:
    """Returns where the lines since `since` begin. A file without a change since then is skipped without an open()."""
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
    at, first = size, None  # first: the offset of the earliest line that is new enough
    while at > 0:
        start = max(0, at - CHUNK)
        file.seek(start)
        data = file.read(at - start)
        if start and (cut := data.find(b"\n") + 1):  # the next chunk has this line's begin
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
    """Returns seconds since 1970; None if there is no time. A time without a zone is local.

    `near`: a known time that is less than half a day from the line's time (half a year, for a date without a year).
    None: times without a day or a year are not understood.
    """
    if not ANY.search(line, 0, LOOK + 20):
        return None
    for form in FORMS:
        found = form.search(line, 0, LOOK + 40)
        if found and found.start() <= LOOK:
            try:
                return _seconds(found.groupdict(), near)
            except (ValueError, OverflowError):  # the 45th of a month, or an impossible year
                return None
    return None


def without_time(line: str) -> str:
    """Returns the line without the time that time_in() reads."""
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


@lru_cache(maxsize=1024)  # thousands of lines may have the same minute
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
        return _minute(year, month, day + (1 if found < near else -1), hour, minute, "")  # mktime accepts a day 32
    return found


def _in_the_nearest_year(near: float, month: int, day: int, hour: int, minute: int) -> float:
    year = time.localtime(near)[0]
    found = _minute(year, month, day, hour, minute, "")
    if abs(found - near) > HALF_A_YEAR:
        return _minute(year + (1 if found < near else -1), month, day, hour, minute, "")
    return found


class TracebackLines:
    """The state of a parser that takes lines one by one, in their order.

    A launcher's label before each line, such as torchrun's `[rank0]: `, is allowed."""

    def __init__(self) -> None:
        self.state = 0  # outside of a traceback
        self.prefix = ""

    @property
    def open(self) -> bool:
        """Whether the traceback's exception has not come yet."""
        return self.state not in (0, EXCEPTION)

    def takes(self, line: str) -> bool:
        """Returns whether the line belongs to a traceback; its first line does, too. Empty lines after a traceback do,
        because a chained traceback may follow."""
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
