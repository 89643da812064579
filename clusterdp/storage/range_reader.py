"""RangeReader: a file on a server, read in as few requests as possible."""

from __future__ import annotations

from collections.abc import Callable


class RangeReader:
    """The range that the caller has announced is fetched in one request, at the first read within it."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int | None):
        self._fetch = fetch
        self._start, self._stop = start, stop if stop is not None else start
        self._piece: memoryview | None = None

    def read_at(self, start: int, into: memoryview) -> int:
        stop = start + len(into)
        if not self._start <= start <= stop <= self._stop:
            data = memoryview(self._fetch(start, stop)) if stop > start else memoryview(b"")
        else:
            if self._piece is None:
                self._piece = memoryview(self._fetch(self._start, self._stop))
            data = self._piece[start - self._start : stop - self._start]
        into[: len(data)] = data
        return len(data)
