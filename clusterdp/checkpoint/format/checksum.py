"""XXH3, 64 bits: the checksum of a block. Torch-free.

XXH3 is as fast as memory (35 GB/s on one core, while zlib's crc32 reaches 3.8 GB/s). Therefore every restore can verify
every byte. XXH3 misses one of 2**64 random changes, CRC-32 one of 2**32 changes. Like CRC-32, XXH3 protects against
faulty disks, networks and memory, not against attackers. https://github.com/Cyan4973/xxHash
"""

from __future__ import annotations

import xxhash

from clusterdp.checkpoint.format.layout import BLOCK

Bytes = bytes | bytearray | memoryview


def checksum(*pieces: Bytes) -> int:
    """Returns the checksum of the concatenated pieces."""
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0])
    running = xxhash.xxh3_64()
    for piece in pieces:
        running.update(piece)
    return running.intdigest()


def checksums(data: memoryview) -> tuple[int, ...]:
    """Returns a checksum for each BLOCK of the data."""
    return tuple(checksum(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))
