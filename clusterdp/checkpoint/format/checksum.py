"""XXH3, 64 bits: the checksum of a block. Torch-free.

It reads at the speed of memory (35 GB/s on one core where zlib's crc32 does 3.8), which is what lets every restore
verify every byte; and it lets one in 2**64 of the random changes through, CRC-32 one in 2**32. Like CRC-32 it guards
against disks, networks and bad memory, not against people. https://github.com/Cyan4973/xxHash
"""

from __future__ import annotations

import xxhash

from clusterdp.checkpoint.format.layout import BLOCK

Bytes = bytes | bytearray | memoryview


def checksum(*pieces: Bytes) -> int:
    """The checksum of the pieces, one after another."""
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0])
    running = xxhash.xxh3_64()
    for piece in pieces:
        running.update(piece)
    return running.intdigest()


def checksums(data: memoryview) -> tuple[int, ...]:
    """A checksum for each BLOCK."""
    return tuple(checksum(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))
