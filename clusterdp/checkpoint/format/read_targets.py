"""The targets of verified blocks: one buffer, many pieces of memory, or none. Torch-free.

Addresses are positions in the buffer that all blocks together would fill (Manifest.bases).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from clusterdp.checkpoint.format.layout import BLOCK


class ReadTarget(Protocol):
    """Memory for verified blocks. Several threads use a target at the same time, each of them for other blocks."""

    def room(self, start: int, stop: int) -> memoryview:
        """Returns memory into which the bytes [start, stop) are read before they are verified."""

    def accept(self, start: int, stop: int) -> None:
        """Is called with the bytes [start, stop) after they have been verified."""


class BufferTarget:
    """A target that is the buffer itself, or a part of the buffer that begins at the address `base`."""

    def __init__(self, buffer: memoryview, base: int = 0):
        self._buffer, self._base = buffer, base

    def room(self, start: int, stop: int) -> memoryview:
        return self._buffer[start - self._base : stop - self._base]

    def accept(self, start: int, stop: int) -> None:
        pass


class _Scratch(threading.local):
    """Memory for one block in each thread, small enough to stay in the processor's cache."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(BLOCK))


class DiscardTarget:
    """A target without memory, for a caller that only verifies the bytes."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def room(self, start: int, stop: int) -> memoryview:
        return self._scratch.memory[: stop - start]

    def accept(self, start: int, stop: int) -> None:
        pass


class DeviceMemory(Protocol):
    """Memory that the processor cannot address, such as a GPU's. Several threads write to this memory at the same
    time."""

    def __len__(self) -> int:
        """Bytes."""

    def write(self, at: int, data: memoryview) -> None:
        """Copies the data to the position `at`. After the return, the caller may change the data."""


class ScatterTarget:
    """A target of many pieces of memory. A block that lies within one piece is read directly into it, unless it is on a
    device."""

    def __init__(self, pieces: Sequence[tuple[int, memoryview | DeviceMemory]]):
        """pieces: (address, memory), without overlap."""
        self._pieces = sorted(pieces, key=lambda piece: piece[0])
        self._starts = [at for at, _ in self._pieces]
        self._scratch = _Scratch()

    def room(self, start: int, stop: int) -> memoryview:
        found = self._whole(start, stop)
        return self._scratch.memory[: stop - start] if found is None else found

    def accept(self, start: int, stop: int) -> None:
        if self._whole(start, stop) is None:
            self.scatter(start, self._scratch.memory[: stop - start])

    def scatter(self, start: int, data: memoryview) -> None:
        """Copies the data, which begins at the address `start`, into the pieces that it overlaps."""
        stop = start + len(data)
        for at, memory in self._overlapping(start, stop):
            first, last = max(at, start), min(at + len(memory), stop)
            part = data[first - start : last - start]
            if isinstance(memory, memoryview):
                memory[first - at : last - at] = part
            else:
                memory.write(first - at, part)

    def _whole(self, start: int, stop: int) -> memoryview | None:
        number = bisect_right(self._starts, start) - 1
        if number < 0:
            return None
        at, memory = self._pieces[number]
        fits = isinstance(memory, memoryview) and stop <= at + len(memory)
        return memory[start - at : stop - at] if fits else None  # type: ignore[index]

    def _overlapping(self, start: int, stop: int) -> Iterator[tuple[int, memoryview | DeviceMemory]]:
        number = max(bisect_right(self._starts, start) - 1, 0)
        while number < len(self._pieces) and self._starts[number] < stop:
            at, memory = self._pieces[number]
            if at + len(memory) > start:
                yield at, memory
            number += 1
