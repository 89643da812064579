"""Verified reads: every byte that is returned has been checked against its checksum. This module needs no torch and no
communication.

A file is checked against its FileRecord, block by block. A wrong block is read a second time, past caches, before
DamagedError is raised.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from clusterdp.checkpoint.format import skeleton, strictjson, strides
from clusterdp.checkpoint.format.checksum import checksum, checksums
from clusterdp.checkpoint.format.layout import BLOCK, HEADER, FlatLayout, local_name, rank_name
from clusterdp.checkpoint.format.manifest import (
    LIMIT,
    MALFORMED,
    CheckpointInfo,
    FileRecord,
    Manifest,
    decode,
    expected_files,
)
from clusterdp.checkpoint.format.manifest import verify as verify_manifest
from clusterdp.checkpoint.format.read_targets import BufferTarget, DiscardTarget, ReadTarget
from clusterdp.checkpoint.format.strides import Shape
from clusterdp.errors import DamagedError
from clusterdp.storage import Readable, Storage

T = TypeVar("T")
_MOST = 16  # a thread reads at most this number of blocks from one open file
_THREADS = 4


@dataclass(frozen=True)
class BlockRange:
    """Consecutive blocks of one safetensors file, and their place in the buffer to fill."""

    name: str  # of the file on disk, of which this one may be a section
    record: FileRecord
    first: int  # index of the first block
    last: int  # index after the last block
    at: int  # address in the buffer for the first byte of the file's data
    head: int = HEADER  # bytes at the start of the file that are verified but not data

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of the buffer that these blocks fill."""
        start = max(self.first * BLOCK - self.head, 0)
        return self.at + start, self.at + min(self.last * BLOCK, self.record.size) - self.head

    def holding(self, address: int) -> int:
        """Returns the index of the block with this byte of the buffer."""
        return (address - self.at + self.head) // BLOCK

    def trimmed(self, start: int, stop: int) -> BlockRange:
        """Returns the part of the range whose blocks hold the bytes [start, stop) of the buffer."""
        return replace(
            self, first=max(self.first, self.holding(start)), last=min(self.last, self.holding(stop - 1) + 1)
        )

    @property
    def size(self) -> int:
        """The number of bytes on disk."""
        return min(self.last * BLOCK, self.record.size) - self.first * BLOCK


def read_manifest(storage: Storage, info: CheckpointInfo) -> Manifest:
    """Returns the manifest. Raises DamagedError if two reads fail, or both return bytes that differ from the written
    ones."""
    return decode(manifest_bytes(storage, info), info.name)


def manifest_bytes(storage: Storage, info: CheckpointInfo) -> bytes:
    """Returns the verified bytes of the manifest, for decode(). Raises as read_manifest()."""

    def look() -> bytes:
        if (size := storage.size(info.name)) > LIMIT:
            raise DamagedError(f"{info.name}: it has {size} bytes. No manifest is that long: it was overwritten.")
        return verify_manifest(storage.read(info.name), info.name)

    return read_twice(storage, info.name, look)


def ranges_of(manifest: Manifest, most: int = _MOST) -> list[BlockRange]:
    """Returns all blocks of the shared state by address (Manifest.bases), in ranges of up to `most` blocks."""
    info = manifest.info
    ranges: list[BlockRange] = []
    for at, (name, _) in zip(manifest.bases, expected_files(info), strict=True):
        record = manifest.files[name]
        # Chunk.start counts from the first byte of the file.
        head = 0 if manifest.chunks is not None or record.section else HEADER
        ranges += ranges_of_file(f"{info.folder}/{name}", record, at, most, head)
    return ranges


def ranges_of_file(
    name: str, record: FileRecord, at: int = 0, most: int = _MOST, head: int = HEADER
) -> Iterator[BlockRange]:
    name, count = record.path(name), len(record.checksums)
    return (BlockRange(name, record, first, min(first + most, count), at, head) for first in range(0, count, most))


def threads_for(ranges: Sequence[BlockRange], processes: int = 1) -> int:
    """Returns the number of threads that read the ranges. processes: the number of those on this node that read at the
    same time."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cpus()
    return max(1, min(_THREADS, len(ranges), mine, _cpus() // processes))


@cache
def _cpus() -> int:
    return os.cpu_count() or 1


def read_ranges(storage: Storage, ranges: Sequence[BlockRange], target: ReadTarget, processes: int = 1) -> None:
    """Verifies the blocks, and puts their data into `target`. Raises DamagedError or OSError. processes: see
    threads_for()."""
    threads = threads_for(ranges, processes)
    if threads == 1:
        for blocks in ranges:
            read_range(storage, blocks, target)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda blocks: read_range(storage, blocks, target), ranges):
            pass  # the first error is raised here


def read_parts(storage: Storage, ranges: Sequence[BlockRange], parts: Sequence[tuple[int, memoryview]]) -> None:
    """Fills parts of the buffer that the ranges describe, and reads only blocks that hold such parts. parts: pairs
    (address in the buffer, memory to fill). ranges: block ranges in the order of their spans. Raises DamagedError or
    OSError."""
    waiting = sorted(parts, key=lambda part: part[0], reverse=True)
    beside: list[tuple[int, memoryview]] = []
    work: list[tuple[BlockRange, list[tuple[int, memoryview]]]] = []
    for blocks in ranges:
        start, stop = blocks.span
        while waiting and waiting[-1][0] < stop:
            beside.append(waiting.pop())
        beside = [part for part in beside if part[0] + len(part[1]) > start]
        if beside:
            last = max(at + len(data) for at, data in beside)
            work.append((blocks.trimmed(max(start, min(at for at, _ in beside)), min(stop, last)), [*beside]))
    check_sizes(storage, [blocks for blocks, _ in work])

    def read(blocks: BlockRange, wanted: list[tuple[int, memoryview]]) -> None:
        data, (start, stop) = data_of(storage, blocks), blocks.span
        for at, into in wanted:
            first, last = max(at, start), min(at + len(into), stop)
            into[first - at : last - at] = data[first - start : last - start]

    with ThreadPoolExecutor(threads_for(ranges), thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda one: read(*one), work):
            pass  # the first error is raised here


def read_range(storage: Storage, blocks: BlockRange, target: ReadTarget) -> None:
    start = blocks.record.start + blocks.first * BLOCK
    with storage.open(blocks.name, start, start + blocks.size) as file:
        wrong = [number for number in range(blocks.first, blocks.last) if not _read_block(file, blocks, number, target)]
    for number in wrong:
        read_twice(storage, blocks.name, lambda number=number: _reread(storage, blocks, number, target))  # type: ignore[misc]


def data_of(storage: Storage, blocks: BlockRange) -> memoryview:
    """Returns the verified data of these blocks."""
    start, stop = blocks.span
    buffer = memoryview(bytearray(stop - start))
    read_range(storage, blocks, BufferTarget(buffer, start))
    return buffer


def read_file(storage: Storage, name: str, record: FileRecord) -> bytearray:
    """Returns the verified bytes of a small file of any kind."""
    name = record.path(name)
    return read_twice(storage, name, lambda: _read_whole(storage, name, record))


def check_sizes(storage: Storage, ranges: Sequence[BlockRange]) -> None:
    """Raises DamagedError if a file of the ranges is missing or has another size than its record."""
    for name, record in {blocks.name: blocks.record for blocks in ranges}.items():
        read_twice(storage, name, lambda name=name, record=record: _check_size(storage, name, record))  # type: ignore[misc]


def verify(storage: Storage, name: str, record: FileRecord) -> None:
    """Verifies a file of the checkpoint against the file's record."""
    ranges = list(ranges_of_file(name, record))
    check_sizes(storage, ranges)
    read_ranges(storage, ranges, DiscardTarget())


def read_twice(storage: Storage, name: str, look: Callable[[], T]) -> T:
    """Returns the result of `look`, and calls it a second time if it fails: a cache or a bad link may return wrong
    bytes once."""
    try:
        return look()
    except (DamagedError, FileNotFoundError):
        storage.forget(name)
    try:
        return look()
    except FileNotFoundError:
        raise DamagedError(f"{name}: the file is missing. It was deleted or never copied.") from None


def _check_size(storage: Storage, name: str, record: FileRecord) -> None:
    size = storage.size(name)
    if size != record.on_disk:
        raise DamagedError(f"{name}: it has {size} bytes instead of {record.on_disk}. It was cut or overwritten.")


def _reread(storage: Storage, blocks: BlockRange, number: int, target: ReadTarget) -> None:
    storage.forget(blocks.name)
    start, stop = (blocks.record.start + min(at * BLOCK, blocks.record.size) for at in (number, number + 1))
    with storage.open(blocks.name, start, stop) as file:
        if not _read_block(file, blocks, number, target):
            raise DamagedError(
                f"{blocks.name}: the checksum of bytes {start} to {stop - 1} is wrong, in two reads. "
                "The file was changed after it was written."
            )


def _read_block(file: Readable, blocks: BlockRange, number: int, target: ReadTarget) -> bool:
    """Reads one block. Returns whether its checksum is right."""
    start, stop = number * BLOCK, min((number + 1) * BLOCK, blocks.record.size)
    head = min(blocks.head, stop) - start
    parts: list[memoryview] = [memoryview(bytearray(head))] if head > 0 else []
    first, last = blocks.at + max(start - blocks.head, 0), blocks.at + stop - blocks.head
    if first < last:
        parts += target.room(first, last)
    if file.read_at(blocks.record.start + start, *parts) < stop - start:
        return False
    if checksum(*parts) != blocks.record.checksums[number]:
        return False
    if first < last:
        target.accept(first, last)
    return True


def _read_whole(storage: Storage, name: str, record: FileRecord) -> bytearray:
    _check_size(storage, name, record)  # checked first, because a wrong manifest must not cause a large allocation
    data = bytearray(record.size)
    with storage.open(name) as file:
        file.read_at(record.start, memoryview(data))
    if checksums(memoryview(data)) != record.checksums:
        raise DamagedError(f"{name}: its checksum is wrong, in two reads. The file was changed after it was written.")
    return data


def read_rank_file(
    storage: Storage, manifest: Manifest, rank: int, most: int = _MOST
) -> tuple[Any, FlatLayout, list[BlockRange], dict[str, Shape]]:
    """Returns the state that only one rank has: the skeleton, the layout of the tensors in a flat buffer, the ranges
    that fill this buffer, and the strides of tensors that are not row-major. Raises DamagedError or OSError."""
    info = manifest.info
    name, local = f"{info.folder}/{rank_name(info.data, rank)}", local_name(info.data, rank)
    of_rank = manifest.files[rank_name(info.data, rank)]
    if of_rank.section:  # no reader needs the header, and all bytes are verified when all ranks restore
        read_file(storage, name, manifest.files[of_rank.section.file])
    data = read_file(storage, name, of_rank)
    record = manifest.files.get(local)
    ranges = list(ranges_of_file(f"{info.folder}/{local}", record, 0, most)) if record else []
    try:
        content = strictjson.loads(data)
        plan = FlatLayout.from_json(content["index"])
        if plan.total != (record.size - HEADER if record else 0):
            raise ValueError(f"its tensors have {plan.total} bytes, and not those of {local}")
        skeleton.check(content["state"], {entry.name for entry in plan.entries})
        noted = strides.from_json(content.get("strides", {}), plan.shapes)
    except MALFORMED as error:
        raise DamagedError(f"{name}: {error}. This was not written by a save; use another checkpoint.") from error
    check_sizes(storage, ranges)
    return content["state"], plan, ranges, noted
