"""Finds the lines of logs that look like an error, and the ranks that printed the same error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from clusterdp.operate.logs.choice import named
from clusterdp.operate.logs.printer import Printer
from clusterdp.operate.logs.rank_log import RankLog, last_state
from clusterdp.operate.logs.traceback_lines import EXCEPTION, SIGNS, TracebackLines

BATCH = -1  # rank number that stands for the batch script
CHUNK = 256 << 10  # bytes of a log that are read at a time
LONGEST_TRACEBACK = 1000  # lines
PATIENCE = 4  # number of polls for which an unfinished traceback is held back
DISTINCT = 1000  # different errors that are kept; further errors are only counted
LONGEST_LINE = 2000  # characters of a line that are shown
MOST_OF_A_LINE = 16 << 20  # characters of an unfinished line that are kept in memory
# Every line that LINE matches contains one of these words. A search for words is a hundred times as fast as LINE.
WORDS = (
    *SIGNS, "ERROR", "CRITICAL", "FATAL", "[E", "\nE", "[F", "\nF", "CUDA", "NCCL", "nccl", "HIP", "CUBLAS", "CUDNN",
    "Error", "Exception", "srun: ", "slurmstepd: ", "terminate called", "Segmentation fault", "Bus error",
    "core dumped", "ut of memory", "ut Of Memory", "oom", "another",
)  # fmt: skip
LINE = re.compile(
    r"^.{0,80}?(?<![\w=/.-])(?:ERROR|CRITICAL|FATAL)\b(?!=)"
    r"|(?:^|\[)[EF][01]\d[0-3]\d \d\d:\d\d:\d\d"  # glog, the format of torch's C++ code
    r"|\b(?:CUDA|cuDNN|NCCL|HIP)[ _](?:error|failure|WARN|out of memory)|\bnccl\w+Error\b"
    r"|\bCU(?:BLAS|DNN|FFT)_STATUS_(?!SUCCESS)\w"
    r"|^srun: error: |^slurmstepd: |^srun: .*(?:Killed|Terminated)"
    r"|^(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)"
    r"|\bterminate called\b|\bSegmentation fault\b|\bBus error\b|\bcore dumped\b"
    r"|\b[Oo]ut [Oo]f [Mm]emory\b|\boom[-_]kill"
    r"|^clusterdp: (?:another failed|this follows from another rank's failure): "
)
# Parts of an error's text that differ between ranks
OWN = re.compile(
    r"(?:\b\d{2,4}[-/]\d\d[-/]\d{2,4}[T ,]+|\b[A-Z]\d{4} |\b)\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"  # date and time
    r"|0x[0-9a-fA-F]+|\[?\b[Rr]ank[ =:]?\d+\]?|\b(?:cuda:|GPU |gpu |pid[ =:]+|PID[ =:]+)\d+"
    r"|^\S+:\d+:\d+ \[\d+\]"  # host, process, thread and device, as NCCL prints them
)


@dataclass
class Error:
    """An error that the logs of one or several ranks contain."""

    lines: list[str]
    ranks: set[int] = field(default_factory=set)
    count: int = 0


class ErrorFinder:
    """Finds the errors in one log, whose ranks may share it."""

    def __init__(self, log: RankLog):
        self.log = log
        self._ranks: dict[int, _ErrorsOfRank] = {}

    def errors(self, final: bool) -> Iterator[Error]:
        """Yields the errors in the log's new text. If a rank's last error may not be complete yet, it is yielded by a
        later call, or if `final` is true."""
        new: set[int] = set()
        for rank, text in self.log.text(final, CHUNK):
            new.add(rank)
            yield from self._ranks.setdefault(rank, _ErrorsOfRank(rank)).take(text)
        for rank, found in self._ranks.items():
            yield from found.end(final, rank in new)

    @property
    def waits(self) -> bool:
        return any(found.lines for found in self._ranks.values())


class _ErrorsOfRank:
    """Finds the errors of a rank. To be fast, text before the first of WORDS is not even split into lines."""

    def __init__(self, rank: int):
        self._rank = rank
        self.lines: list[str] = []  # lines of the current error
        self._traceback = TracebackLines()
        self._looks = 0  # number of calls of end() since the last new text
        self._rest = ""  # the text of an unfinished line

    def take(self, text: str) -> Iterator[Error]:
        whole, cut, self._rest = (self._rest + text.replace("\0", "")).rpartition("\n")
        self._rest = self._rest.rpartition("\r")[2] if len(self._rest) > CHUNK else self._rest  # a progress bar
        self._rest = self._rest[:MOST_OF_A_LINE]
        whole += cut
        begin = 0 if self.lines else _first_suspect(whole)
        for line in whole[begin:].split("\n")[:-1]:
            yield from self._line(line)

    def end(self, final: bool, new: bool) -> Iterator[Error]:
        """Yields the last error if it is complete. `new`: whether the rank has printed since the last call."""
        if final and self._rest:
            yield from self._line(self._rest)
            self._rest = ""
        self._looks = 0 if new else self._looks + 1
        if final or self._looks >= (PATIENCE if self._traceback.open else 1):
            yield from self._end()

    def _line(self, line: str) -> Iterator[Error]:
        line = last_state(line)
        if line.startswith(" ") and self._traceback.in_frames and len(self.lines) < LONGEST_TRACEBACK:
            self.lines.append(line)
            return
        if self._traceback.state == EXCEPTION and self._traceback.begins(line):  # not a chained traceback
            yield from self._end()
        in_traceback = (self._traceback.state or self._traceback.begins(line)) and self._traceback.takes(line)
        if in_traceback and len(self.lines) < LONGEST_TRACEBACK:
            self.lines.append(line)
            return
        yield from self._end()
        worth_a_look = any(word in line for word in WORDS) or line.startswith(("E", "F"))
        if worth_a_look and LINE.search(line, 0, LONGEST_LINE):
            self.lines = [line]  # a traceback may follow this line

    def _end(self) -> Iterator[Error]:
        lines, self.lines = self.lines, []
        self._traceback = TracebackLines()
        while lines and not lines[-1].strip():
            lines.pop()
        if lines:
            yield Error([_shortened(line) for line in lines], {self._rank}, 1)


class ErrorReport:
    """Collects errors and prints them by rank, each rank's in the order of its log. An error of several ranks is
    printed once."""

    def __init__(self, batch: str = "batch script") -> None:
        self.batch = batch  # name that is printed in place of a rank
        self._found: dict[str, Error] = {}
        self._more = 0

    def add(self, errors: Iterable[Error]) -> None:
        for error in errors:
            key = _key(error.lines)
            if key in self._found:
                known = self._found[key]
                known.ranks |= error.ranks
                known.count += error.count
            elif len(self._found) < DISTINCT:
                self._found[key] = error
            else:
                self._more += error.count

    def print(self, printer: Printer, last: int | None = None) -> int:
        """Prints and forgets the errors, and returns their number. With `last`, only that many errors at the end are
        printed."""
        errors = sorted(self._found.values(), key=lambda error: min(error.ranks))
        shown = errors if last is None else errors[max(0, len(errors) - last) :]
        if left_out := len(errors) - len(shown):
            printer.notice(f"{left_out} earlier; -n all shows them")
        for error in shown:
            self._print(error, printer)
        if self._more:
            printer.notice(f"and {self._more} more that are none of these")
        self._found, self._more = {}, 0
        return len(errors)

    def _print(self, error: Error, printer: Printer) -> None:
        ranks = error.ranks - {BATCH}
        who = [named(ranks)] if ranks else []
        who += [self.batch] if BATCH in error.ranks else []
        times = f" ({error.count} times)" if error.count > len(error.ranks) else ""
        printer.own(f"{printer.colour('red', ', '.join(who) + times + ':')} {error.lines[0]}")
        for line in error.lines[1:]:
            printer.own(line)
        if len(error.lines) > 1:
            printer.own("")


def _first_suspect(text: str) -> int:
    """Returns where the first line with one of WORDS begins, or the length of the text."""
    if text.startswith(("E", "F")):
        return 0
    first = min((at for word in WORDS if (at := text.find(word)) >= 0), default=len(text))
    return text.rfind("\n", 0, first + 1) + 1 if first < len(text) else first


def _key(lines: list[str]) -> str:
    return "\n".join(map(_alike, lines))


@lru_cache(maxsize=4096)  # the ranks' tracebacks have the same frames
def _alike(line: str) -> str:
    return OWN.sub("#", line.strip())


def _shortened(line: str) -> str:
    more = len(line) - LONGEST_LINE
    return line if more <= 0 else f"{line[:LONGEST_LINE]}... ({more:,} more characters)"
