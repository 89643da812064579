"""Reads files that are still being written: only whole lines, only new ones, never more bytes than needed."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import BinaryIO

from clusterdp.plainfile import reading

CHUNK = 64 * 1024
LONG_LINE = 4 * 1024  # bytes; see start_of_last()


def last_bytes(path: Path, limit: int = CHUNK) -> bytes:
    """Returns the end of a file, from the start of a line on; empty if it is missing, or not a regular file."""
    try:
        with reading(path) as file:
            return end_of(file, limit)
    except OSError:
        return b""


def end_of(file: BinaryIO | FileIO, limit: int) -> bytes:
    size = file.seek(0, 2)
    start = max(0, size - limit)
    file.seek(start)
    data = file.read(size - start)
    return data.partition(b"\n")[2] if start else data


def last_lines(path: Path, count: int) -> list[str]:
    return last_bytes(path).decode(errors="replace").rstrip().splitlines()[-count:]


def start_of_last(file: BinaryIO, count: int) -> int:
    """Returns the offset at which the last `count` lines begin. Reads only the end of the file: with lines over 4 KiB
    on average, or without line ends, there may be fewer lines, and the first one may lack its beginning."""
    size = file.seek(0, 2)
    if not size or not count:
        return size
    file.seek(size - 1)
    at = size - (file.read(1) == b"\n")  # a line end that only ends the last line
    lowest, left = max(0, size - 4 * 1024 * 1024 - count * LONG_LINE), count
    while at > lowest:
        start = max(lowest, at - CHUNK)
        file.seek(start)
        data = file.read(at - start)
        found = data.count(b"\n")
        if found >= left:
            cut = len(data)
            for _ in range(left):
                cut = data.rindex(b"\n", 0, cut)
            return start + cut + 1
        left, at = left - found, start
    return at


class Tail:
    """Returns whole lines that were added to a file since the last read(). The file may not exist yet, or may be
    truncated.

    Each read() opens the file, because over NFS only open() asks the server for new bytes.
    """

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0

    def read(self, final: bool = False, limit: int = 16 * CHUNK) -> str:
        """Returns new text, at most `limit` bytes of it; with `final` also an unfinished last line."""
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
        if (full and whole) or not (full or final):  # a line longer than `limit` is returned in pieces
            data = data[:whole]
        elif full:
            data = data[: _whole_letters(data)]
        self.offset += len(data)
        return data.decode(errors="replace")


def _whole_letters(data: bytes) -> int:
    """Returns the number of bytes before a UTF-8 character that is cut off at the end."""
    for back in range(1, min(4, len(data))):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character, which gives the number of its bytes
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)
