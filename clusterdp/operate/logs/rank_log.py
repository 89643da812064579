"""RankLog: the log of one rank, or of the ranks of a node, read as it grows."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from clusterdp.batch.files.rank_logs import MOST, LogFile, RankLines, end_of, ranks_in, whole
from clusterdp.plainfile import open_plain
from clusterdp.rundir.tail import Tail

LONG_LINE = 4 * 1024  # average length of a line in bytes that begin_at_last() allows for
LONGEST = 256 << 10  # longest unfinished line in characters; a longer line is yielded in parts


class RankLog:
    """A log, read as it grows, of the ranks that are wanted. `problem` returns the reason why the file cannot be
    read."""

    def __init__(self, file: LogFile, wants: Callable[[int], bool] = lambda rank: True):
        self.file, self.wants = file, wants
        self.tail = Tail(Path(file.path), bars=not file.is_shared)
        self.cut = False  # True: the first part of the file is not shown
        self._ranks: list[int] = []
        self._rank_lines = RankLines()
        self._line: dict[int, str] = {}  # the text of an unfinished line, by rank
        self._skip: Counter[int] = Counter()  # number of a rank's next lines that are not shown

    @property
    def path(self) -> Path:
        return self.tail.path

    def ranks(self) -> list[int]:
        """Returns the wanted ranks that have printed, as far as both ends of the file show."""
        self._ranks = self._ranks or [rank for rank in ranks_in(self.file) if self.wants(rank)]
        return self._ranks

    def problem(self) -> str:
        try:
            os.close(open_plain(self.path))
            return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)

    def begin_at_last(self, count: int) -> None:
        """Skips all lines of each rank except the last `count`. Only the end of the file is read: if a rank has printed
        lines of more than 4 KiB on average, or long before others, fewer lines are left, and the first one may lack its
        beginning."""
        ranks, enough = self.ranks(), count + self.file.is_shared
        look, most = max(LONG_LINE, 128 * count * len(ranks)), MOST + count * LONG_LINE * len(ranks)
        while True:
            data, start = end_of(self.file.path, min(look, most))
            found = whole(data) if self.file.is_shared else {self.file.number: data}
            lines = {rank: text.count(b"\n") + (text[-1:] not in b"\n") for rank, text in found.items()}
            if not start or look >= most or all(lines.get(rank, 0) >= enough for rank in ranks):
                break
            look *= 4
        self._skip = Counter({rank: has - count for rank, has in lines.items() if has > count})
        self.tail.offset = start
        self.cut = start > 0 or any(map(self.wants, self._skip))

    def text(self, final: bool, limit: int = 1 << 20) -> Iterator[tuple[int, str]]:
        """Yields the file's new text unchanged, in whole lines, with its rank: ranks that share a file come in their
        order, `limit` bytes of the file at a time. A line longer than that comes in pieces."""
        while data := self.tail.read_bytes(final, limit):
            yield from self._of_ranks(self._taken(data))
            if self.tail.at_end:  # what is printed meanwhile is for the next call
                break
        if final:
            yield from self._of_ranks(self._rank_lines.rest())

    def _taken(self, data: bytes) -> dict[int, bytes]:
        if not self.file.is_shared:
            return {self.file.number: data}
        return self._rank_lines.take(data if data.endswith(b"\n") else data + b"\n")

    def _of_ranks(self, found: dict[int, bytes]) -> Iterator[tuple[int, str]]:
        for rank in sorted(filter(self.wants, found)):
            text = found[rank]
            if skip := self._skip[rank]:
                self._skip[rank] = max(0, skip - text.count(b"\n"))
                text = b"" if self._skip[rank] else text.split(b"\n", skip)[skip]
            if text:
                yield rank, text.decode(errors="replace")

    def lines(self, final: bool) -> Iterator[tuple[int, str]]:
        """Yields the file's new lines, one or several of a rank. Of a progress bar, which overwrites its line many
        times, only the last state is yielded. Parts of a line, and the file's last line, may lack the \\n."""
        for rank, text in self.text(final):
            if text.endswith("\n") and "\r" not in text and "\0" not in text and rank not in self._line:
                yield rank, text
                continue
            first, *more = text.replace("\0", "").split("\n")
            line = self._line.pop(rank, "")
            for part in more:
                yield rank, last_state(line + first) + "\n"
                line, first = "", part
            line = last_state(line + first, open_=True)
            if len(line) > LONGEST:
                yield rank, line
            elif line:
                self._line[rank] = line
        if final:
            yield from ((rank, last_state(line)) for rank, line in self._line.items())
            self._line.clear()


def same_file(path: Path) -> Path:
    """Returns the file that a link names: with submitit, the logs of all attempts of a job are links to one file."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def last_state(line: str, open_: bool = False) -> str:
    """Returns the text after the last \\r. With `open_`, the line may continue, and a \\r at its end is kept."""
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return state + "\r" if open_ and line.endswith("\r") else state
