"""Buffer: a large piece of memory, in huge pages if the system has them. release() returns parts of it."""

from __future__ import annotations

import mmap
from contextlib import suppress

import torch

HUGE = 2 << 20  # bytes of a huge page; smaller buffers do not use huge pages


class Buffer:
    """`tensor`: the bytes of the buffer (uint8, one dimension). New memory costs a page fault for every 4 KiB, which
    takes as long as reading from the page cache. Huge pages cost one page fault for every 2 MiB."""

    def __init__(self, size: int):
        self._memory: mmap.mmap | None = None
        if size < HUGE:
            self.tensor = torch.empty(size, dtype=torch.uint8)
            return
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._advise("MADV_HUGEPAGE", 0, size)
        self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8)

    def release(self, start: int, stop: int) -> None:
        """Returns the pages within the bytes [start, stop) to the system. Other bytes stay as they are."""
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._advise("MADV_DONTNEED", first, last - first)

    def hide_from_children(self) -> None:
        """Leaves these pages out of forked processes, such as loader workers. With old kernels (before about 5.12), a
        parent that writes after a fork gets new pages, while the GPU still writes into the old pages."""
        self._advise("MADV_DONTFORK", 0, self.tensor.numel())

    def _advise(self, advice: str, start: int, length: int) -> None:
        number = getattr(mmap, advice, None)  # macOS has no advice for huge pages
        if self._memory is not None and number is not None:
            with suppress(OSError):  # the kernel may have no huge pages
                self._memory.madvise(number, start, length)
