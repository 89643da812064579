"""The targets of verified blocks: one buffer, many pieces of memory, or none. Torch-free.

Addresses are positions in the buffer that all blocks together would fill (Manifest.bases).
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from clusterdp.checkpoint.format.layout import BLOCK

MOST_PARTS = 1000  # of one read: IOV_MAX is 1024


class ReadTarget(Protocol):
    """Memory for verified blocks. Several threads use a target at the same time, each of them for other blocks."""

    def room(self, start: int, stop: int) -> Sequence[memoryview]:
        """Returns memory, in one or several pieces, into which the bytes [start, stop) are read before they are
        verified."""

    def accept(self, start: int, stop: int) -> None:
        """Is called with the bytes [start, stop) after they have been verified."""


class BufferTarget:
    """A target that is the buffer itself, or a part of the buffer that begins at the address `base`."""

    def __init__(self, buffer: memoryview, base: int = 0):
        self._buffer, self._base = buffer, base

    def room(self, start: int, stop: int) -> Sequence[memoryview]:
        return (self._buffer[start - self._base : stop - self._base],)

    def accept(self, start: int, stop: int) -> None:
        pass


class _Scratch(threading.local):
    """Memory for one block in each thread, small enough to stay in the processor's cache."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(BLOCK))
        self.holds = False  # whether this memory has the whole block that is read


class DiscardTarget:
    """A target without memory, for a caller that only verifies the bytes."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def room(self, start: int, stop: int) -> Sequence[memoryview]:
        return (self._scratch.memory[: stop - start],)

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
    """A target of many pieces of memory, into which a block is read directly, unless one of them is on a device."""

    def __init__(self, pieces: Sequence[tuple[int, memoryview | DeviceMemory]]):
        """pieces: (address, memory), without overlap."""
        self._pieces = sorted(pieces, key=lambda piece: piece[0])
        self._starts = [at for at, _ in self._pieces]
        self._scratch = _Scratch()

    def room(self, start: int, stop: int) -> Sequence[memoryview]:
        found = self._direct(start, stop)
        self._scratch.holds = not found
        return found or (self._scratch.memory[: stop - start],)

    def accept(self, start: int, stop: int) -> None:
        if self._scratch.holds:
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

    def _direct(self, start: int, stop: int) -> list[memoryview]:
        """Returns the pieces with the bytes [start, stop), and memory for the bytes between them; an empty list if a
        piece is on a device, or if there are too many for one read."""
        parts: list[memoryview] = []
        end, scratch = start, self._scratch.memory
        for at, memory in self._overlapping(start, stop):
            if not isinstance(memory, memoryview):
                return []
            if at > end:
                parts.append(scratch[end - start : at - start])
            end = min(at + len(memory), stop)
            parts.append(memory[max(start - at, 0) : end - at])
        if end < stop:
            parts.append(scratch[end - start : stop - start])
        return parts if len(parts) <= MOST_PARTS else []

    def _overlapping(self, start: int, stop: int) -> Iterator[tuple[int, memoryview | DeviceMemory]]:
        number = max(bisect_right(self._starts, start) - 1, 0)
        while number < len(self._pieces) and self._starts[number] < stop:
            at, memory = self._pieces[number]
            if at + len(memory) > start:
                yield at, memory
            number += 1
