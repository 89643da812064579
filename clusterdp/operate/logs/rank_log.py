"""RankLog: the log of one rank, read as it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clusterdp.plainfile import open_plain, reading
from clusterdp.rundir.tail import Tail, start_of_last

LONGEST = 256 << 10  # longest unfinished line in characters; a longer line is yielded in parts


class RankLog:
    """The log of one rank, read as it grows. `problem` returns the reason why the file cannot be read."""

    def __init__(self, rank: int, path: Path):
        self.rank = rank
        self.tail = Tail(path)
        self.cut = False  # True: the first part of the file is not shown
        self._line = ""  # the text of an unfinished line

    @property
    def path(self) -> Path:
        return self.tail.path

    def problem(self) -> str:
        try:
            os.close(open_plain(self.path))
            return ""
        except FileNotFoundError:
            return ""
        except OSError as error:
            return error.strerror or str(error)

    def begin_at_last(self, count: int) -> None:
        """Skips all lines except the last `count`."""
        try:
            with reading(self.path) as file:
                self.tail.offset = max(self.tail.offset, start_of_last(file, count))
        except OSError:
            return
        self.cut = self.tail.offset > 0

    def text(self, final: bool, limit: int = 1 << 20) -> Iterator[str]:
        """Yields the file's new text unchanged, in whole lines. A line longer than `limit` bytes comes in pieces."""
        while text := self.tail.read(final, limit):
            yield text
            if self.tail.at_end:  # what is printed meanwhile is for the next call
                return

    def lines(self, final: bool) -> Iterator[str]:
        """Yields the file's new lines. Of a progress bar, which overwrites its line many times, only the last state is
        yielded. Parts of a line, and the file's last line, may lack the \\n."""
        for text in self.text(final):
            first, *more = text.replace("\0", "").split("\n")
            for part in more:
                yield last_state(self._line + first) + "\n"
                self._line, first = "", part
            self._line = last_state(self._line + first, open_=True)
            if len(self._line) > LONGEST:
                yield self._line
                self._line = ""
        if final and self._line:
            yield last_state(self._line)
            self._line = ""


def same_file(path: Path) -> Path:
    """Returns the file that a link names: with submitit, the logs of all attempts of a job are links to one file."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def last_state(line: str, open_: bool = False) -> str:
    """Returns the text after the last \\r. With `open_`, the line may continue, and a \\r at its end is kept."""
    if "\r" not in line:
        return line
    state = line.rstrip("\r").rpartition("\r")[2]
    return state + "\r" if open_ and line.endswith("\r") else state
