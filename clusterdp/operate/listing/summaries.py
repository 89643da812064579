"""The summaries of runs that are over: a file of mine beside the index, so that `list` need not read ten thousand run
folders again. It may be deleted at any time.

A line is: the run, the stamp of its folder, a checksum, the summary. A line that is torn, or of a folder that has
changed since, counts as missing. The file is replaced as a whole; of two that do so at once one wins, and what the
other had read is read again.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from clusterdp import __version__
from clusterdp.operate.find.run_index import index_path
from clusterdp.plainfile import MOST, read_plain
from clusterdp.rundir import write_durably

# Another version may read more in the same folder: it begins anew.
HEADER = f"clusterdp {__version__}, summaries 3".encode()


class Summaries:
    """Used by several threads at once, each for runs of its own."""

    def __init__(self, path: Path):
        self.path = path
        self.changed = False
        self._lines: dict[bytes, bytes] = {}
        try:
            header, *lines = read_plain(path).split(b"\n")
        except OSError:
            return
        if header == HEADER:
            for line in lines:
                run, _, rest = line.partition(b"\t")
                self._lines[run] = rest

    def __contains__(self, run: str) -> bool:
        """Whether there is one, be it out of date."""
        return _key(run) in self._lines

    def get(self, run: str, stamp: str) -> str | None:
        """The summary as JSON; None if there is none of this stamp."""
        key = _key(run)
        found = self._lines.get(key, b"").split(b"\t", 2)
        if len(found) < 3 or found[0] != stamp.encode() or found[1] != _checksum(key, found[0], found[2]):
            return None
        return found[2].decode()

    def put(self, run: str, stamp: str, summary: str) -> None:
        """`summary`: JSON in one line."""
        key, text = _key(run), summary.encode()
        self.drop(run)  # the last line is the newest
        self._lines[key] = b"\t".join((stamp.encode(), _checksum(key, stamp.encode(), text), text))
        self.changed = True

    def drop(self, run: str) -> None:
        self.changed |= self._lines.pop(_key(run), None) is not None

    def save(self) -> None:
        """If anything has changed. It is no error if the file cannot be written."""
        if not self.changed:
            return
        lines = [b"\t".join(line) for line in list(self._lines.items()) if all(line)]
        size = sum(map(len, lines))
        while size > MOST // 2:  # what is larger than MOST would not be read
            size -= len(lines.pop(0))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(self.path, b"\n".join((HEADER, *lines, b"")), mode=0o600)
            self.changed = False
        except OSError:
            pass


def summaries_path() -> Path:
    return index_path().with_name("summaries")


def _key(run: str) -> bytes:
    return os.fsencode(run) if run.isprintable() else json.dumps(run).encode()  # without tabs and newlines


def _checksum(*parts: bytes) -> bytes:
    return b"%08x" % zlib.crc32(b"\t".join(parts))


def stamp_of(run: str) -> tuple[str, float]:
    """What changes with the folder of a run that is over, and when it last changed.

    A new attempt, a cancellation and a stop have event files of their own; a resume and a note write into the run
    folder. FileNotFoundError if there is no such folder."""
    folder = os.stat(run)
    own = f"{folder.st_ino}.{folder.st_mtime_ns}"
    try:
        events = os.stat(f"{run}/events")
    except FileNotFoundError:
        return own, folder.st_mtime
    return f"{own}.{events.st_ino}.{events.st_mtime_ns}", max(folder.st_mtime, events.st_mtime)
