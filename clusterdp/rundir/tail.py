"""Reads files that are still being written: only whole lines, only new lines, and no more bytes than needed."""

from __future__ import annotations

from io import FileIO
from pathlib import Path
from typing import BinaryIO

from clusterdp.plainfile import reading

CHUNK = 64 * 1024


def last_bytes(path: Path, limit: int = CHUNK) -> bytes:
    """Returns the end of a file, from the start of a line on; empty if the file is missing, or is not a regular
    file."""
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


class Tail:
    """Reads a growing file: each read() returns the whole lines that were added after the previous read(). The file may
    not exist yet, or may be truncated.

    Each read() opens the file, because over NFS only open() asks the server for new bytes. `bars`: whether \\r ends a
    line, as in a progress bar.
    """

    def __init__(self, path: Path, bars: bool = True):
        self.path, self.bars = path, bars
        self.offset = 0
        self.at_end = False  # the last read() has reached the end that the file had then

    def read(self, final: bool = False, limit: int = 16 * CHUNK) -> str:
        return self.read_bytes(final, limit).decode(errors="replace")

    def read_bytes(self, final: bool = False, limit: int = 16 * CHUNK) -> bytes:
        """Returns the new text, at most `limit` bytes at a time. With `final`, an unfinished last line is included."""
        try:
            with reading(self.path) as file:
                if file.seek(0, 2) < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                data = file.read(limit)
        except OSError:
            return b""
        full = len(data) == limit
        self.at_end = not full
        whole = max(data.rfind(b"\n"), data.rfind(b"\r") if self.bars else -1) + 1
        if (full and whole) or not (full or final):  # lines longer than `limit` are returned in pieces
            data = data[:whole]
        elif full:
            data = data[: _whole_letters(data)]
        self.offset += len(data)
        return data


def _whole_letters(data: bytes) -> int:
    """Returns the number of bytes without an incomplete UTF-8 character at the end."""
    for back in range(1, min(4, len(data))):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # first byte of a character: gives the number of its bytes
            length = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if length > back else len(data)
    return len(data)
