"""A file that grows line by line, on a disk that may be full: lines that do not fit wait until there is room."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class AppendFile:
    def __init__(self, path: Path):
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._file).st_size
        self._waiting = bytearray()
        self._complained = False
        if self.size and os.pread(self._file, 1, self.size - 1) != b"\n":  # torn: its writer was killed
            self._waiting += b"\n"

    def write(self, line: str) -> None:
        """Add a line, which `flush` writes to the page cache: a kill -9 does not lose it, a power cut may."""
        self._waiting += line.encode("utf-8", "surrogateescape") + b"\n"

    def flush(self) -> bool:
        """Write what waits; False if not all of it could be written. The rest is written by the next flush."""
        try:
            while self._waiting:
                written = os.write(self._file, self._waiting)
                del self._waiting[:written]
                self.size += written
        except OSError as error:
            self._complain(f"{self.path}: {error.strerror}. Make room there: until then no job starts.")
            return False
        self._complained = False
        return True

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            try:
                print(text, file=sys.stderr, flush=True)
            except OSError:
                pass  # the log is on the same disk

    def close(self) -> None:
        self.flush()
        os.close(self._file)
