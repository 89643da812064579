"""Payload: the bytes of each tensor of a checkpoint. Torch-free.

`checkpoint export` and `checkpoint diff` read tensors through a Payload, in the same way from one flat buffer and from
pieces that each rank has written."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from clusterdp.checkpoint.format.layout import ITEM_SIZES, FlatLayout, TensorEntry
from clusterdp.checkpoint.format.manifest import Box, Manifest
from clusterdp.checkpoint.format.verified_reads import (
    BlockRange,
    check_sizes,
    data_of,
    ranges_of,
    read_parts,
    read_rank_file,
    threads_for,
)
from clusterdp.storage import Storage

PIECE = 4  # number of blocks read at a time; with blocks read ahead, about 20 MiB of memory for a state of any size


class Payload(Protocol):
    @property
    def entries(self) -> Sequence[TensorEntry]:
        """The entries of all tensors. A reader that reads tensors in this order reads every byte once."""

    def read(self, entry: TensorEntry) -> Iterator[memoryview]:
        """Yields the tensor's verified bytes in order, in pieces. Raises DamagedError or OSError."""


@contextmanager
def shared_payload(storage: Storage, manifest: Manifest) -> Iterator[Payload]:
    """Yields the payload of the shared state: tensors that are equal on all ranks, and sharded tensors."""
    if manifest.chunks is not None:
        yield ShardedPayload(storage, manifest)
        return
    with ThreadPoolExecutor(threads_for(ranges_of(manifest)), thread_name_prefix="read-ahead") as pool:
        payload = FlatPayload(storage, manifest.layout, ranges_of(manifest, PIECE), pool)
        try:
            yield payload
        finally:
            payload.stop()


@contextmanager
def own_payload(storage: Storage, manifest: Manifest, rank: int) -> Iterator[tuple[Any, Payload]]:
    """Yields the state that only one rank has: the skeleton, and the payload of the tensors."""
    skeleton, plan, ranges, _ = read_rank_file(storage, manifest, rank, PIECE)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        yield skeleton, FlatPayload(storage, plan, ranges, pool)


def whole(payload: Payload, entry: TensorEntry) -> bytearray:
    """Returns all bytes of one tensor."""
    data = bytearray(entry.nbytes)
    at = 0
    for piece in payload.read(entry):
        data[at : at + len(piece)] = piece
        at += len(piece)
    return data


class FlatPayload:
    """Reads tensors of a flat buffer. Blocks are read ahead in the order of the entries, and dropped after their
    use."""

    def __init__(self, storage: Storage, plan: FlatLayout, ranges: Sequence[BlockRange], pool: ThreadPoolExecutor):
        check_sizes(storage, ranges)
        self.entries: Sequence[TensorEntry] = plan.entries
        self._storage = storage
        self._ranges = [blocks for blocks in ranges if blocks.span[0] < blocks.span[1]]  # a rank's slice may be empty
        self._starts = [blocks.span[0] for blocks in self._ranges]
        self._pool = pool
        self._ahead: dict[int, Future[memoryview]] = {}

    def read(self, entry: TensorEntry) -> Iterator[memoryview]:
        at = entry.offset
        while at < entry.end:
            number = bisect_right(self._starts, at) - 1
            start, stop = self._ranges[number].span
            upto = min(stop, entry.end)
            yield self._data(number)[at - start : upto - start]
            at = upto

    def stop(self) -> None:
        while self._ahead:
            self._ahead.popitem()[1].cancel()

    def _data(self, number: int) -> memoryview:
        wanted = range(number, min(number + PIECE, len(self._ranges)))
        for old in [old for old in self._ahead if old not in wanted]:
            self._ahead.pop(old).cancel()
        for new in wanted:
            if new not in self._ahead:
                self._ahead[new] = self._pool.submit(data_of, self._storage, self._ranges[new])
        return self._ahead[number].result()


class ShardedPayload:
    """Reads tensors of a sharded checkpoint. All pieces of a tensor are read at once, and joined."""

    def __init__(self, storage: Storage, manifest: Manifest):
        self.entries: Sequence[TensorEntry] = manifest.layout.entries
        self._storage = storage
        self._manifest = manifest
        self._ranges = ranges_of(manifest)

    def read(self, entry: TensorEntry) -> Iterator[memoryview]:
        item = ITEM_SIZES[entry.dtype]
        data = memoryview(bytearray(entry.nbytes))
        parts: list[tuple[int, memoryview]] = []
        scattered: list[tuple[Box, memoryview]] = []
        for box in self._manifest.boxes(entry):
            length, starts = rows_of(box, entry.shape)
            if len(starts) == 1:
                parts.append((box.address, data[starts[0] * item : (starts[0] + length) * item]))
            else:
                scattered.append((box, memoryview(bytearray(math.prod(box.sizes) * item))))
                parts.append((box.address, scattered[-1][1]))
        read_parts(self._storage, self._ranges, parts)
        for box, piece in scattered:
            length, starts = rows_of(box, entry.shape)
            for i, start in enumerate(starts):
                data[start * item : (start + length) * item] = piece[i * length * item : (i + 1) * length * item]
        yield data


def rows_of(box: Box, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """Returns the length of the box's rows, which are consecutive elements of the box and of the tensor, and the index
    of each row's first element in the tensor."""
    outer, length = len(shape), 1
    while outer and box.sizes[outer - 1] == shape[outer - 1]:
        outer -= 1
        length *= shape[outer]
    if outer:  # in the last dimension that is cut, the box's part is consecutive, too
        outer -= 1
        length *= box.sizes[outer]
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first = sum(map(math.prod, zip(box.offsets, strides, strict=True)))
    rows = itertools.product(*map(range, box.sizes[:outer]))
    return length, [first + sum(map(math.prod, zip(row, strides, strict=False))) for row in rows]
