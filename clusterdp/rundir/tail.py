"""Reading files that others are still writing: only whole lines, only what is new, never more than needed."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from clusterdp.plainfile import reading

CHUNK = 64 * 1024


def last_bytes(path: Path, limit: int = CHUNK) -> bytes:
    """The end of a file, from the start of a line on; empty if it is not there, or no file."""
    try:
        with reading(path) as file:
            return end_of(file, limit)
    except OSError:
        return b""


def end_of(file: BinaryIO, limit: int) -> bytes:
    size = file.seek(0, 2)
    start = max(0, size - limit)
    file.seek(start)
    data = file.read(size - start)
    return data.partition(b"\n")[2] if start else data


def last_lines(path: Path, count: int) -> list[str]:
    return last_bytes(path).decode(errors="replace").rstrip().splitlines()[-count:]


class Tail:
    """Returns what was added to a file since the last look, in whole lines. The file may not be there yet, or be cut
    short.

    It is opened for each look: over NFS only open() asks the server whether there is more.
    """

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0

    def read(self, final: bool = False, limit: int = 16 * CHUNK) -> str:
        """At most `limit` bytes; with `final` what is left of an unfinished last line too."""
        try:
            with reading(self.path) as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return ""
        full = len(data) == limit
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1  # progress bars end their lines with \r
        if (full and whole) or not (full or final):  # a line longer than `limit` goes out in pieces
            data = data[:whole]
        self.offset += len(data)
        return data.decode(errors="replace")
