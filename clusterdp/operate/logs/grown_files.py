"""Which of many logs may have something new. A thousand files are not opened, nor listed, several times a second.

A look asks for the sizes, which is cheap: of some hundred files at each, of those that grow at each. Over NFS they may
be old, for only open() asks the server. So each file is opened, too, the more rarely the longer it has not grown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from clusterdp.plainfile import open_plain

ASKED_A_SECOND = 1000  # silent files, in all
OPENS_A_SECOND = 100  # likewise
LIST_EVERY_S = 2.0


class _Seen:
    def __init__(self) -> None:
        self.size = 0
        self.pause = 0.0  # until it is opened again, in seconds
        self.open_at = 0.0
        self.ask_at = 0.0


class GrownFiles:
    """`poll_s`: the time between two looks, in seconds."""

    def __init__(self, poll_s: float, clock: Callable[[], float]):
        self.poll_s, self.clock = poll_s, clock
        self._seen: dict[str, _Seen] = {}

    def grown(self, path: str) -> bool:
        """Whether it has another size than at the last look. True for one that is new; False if it is not there."""
        seen = self._seen.get(path)
        if seen is None:
            seen = self._seen[path] = _Seen()
            seen.pause = self.poll_s
        now = self.clock()
        if now < seen.ask_at:
            return False
        try:
            size = os.stat(path).st_size
            if size == seen.size and now >= seen.open_at:
                size = _size_by_open(path)
                seen.pause = min(2 * seen.pause, max(self.poll_s, len(self._seen) / OPENS_A_SECOND))
                seen.open_at = now + seen.pause
        except OSError:
            return False
        if size == seen.size:
            seen.ask_at = now + min(seen.pause, len(self._seen) / ASKED_A_SECOND) - self.poll_s / 2
            return False
        seen.size, seen.pause, seen.open_at = size, self.poll_s, now + self.poll_s
        return True


class NewNames:
    """Whether a folder may have names that it did not have at the last look."""

    def __init__(self, clock: Callable[[], float]):
        self.clock = clock
        self._seen: tuple[Path, int] | None = None
        self._due = 0.0

    def may_be_in(self, folder: Path) -> bool:
        """True also some seconds after the last time: over NFS the folder's own time may be old, and on disks of coarse
        times it may be that of the look before."""
        try:
            seen = folder, os.stat(folder).st_mtime_ns
        except OSError:
            return False
        now = self.clock()
        if seen == self._seen and now < self._due:
            return False
        self._seen, self._due = seen, now + LIST_EVERY_S
        return True


def _size_by_open(path: str) -> int:
    file = open_plain(path)
    try:
        return os.fstat(file).st_size
    finally:
        os.close(file)
