"""The seam between a checkpoint and who wants the bytes of a tensor. Torch-free.

Whoever exports or compares checkpoints knows a Payload only, not how its tensors lie in files: in one flat buffer, or
in pieces that each rank has written.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

from clusterdp.checkpoint.format.layout import ITEM_SIZES, Entry, Layout
from clusterdp.checkpoint.format.manifest import Box, Manifest
from clusterdp.checkpoint.format.verified_reads import (
    Run,
    check_sizes,
    data_of,
    read_parts,
    read_rank_file,
    runs_of,
    threads_for,
)
from clusterdp.storage import Storage

PIECE = 4  # blocks read at a time: with those read ahead, some 20 MiB of memory, however large the state is


class Payload(Protocol):
    @property
    def entries(self) -> Sequence[Entry]:
        """All tensors, in the order in which reading them reads every byte once."""

    def read(self, entry: Entry) -> Iterator[memoryview]:
        """The tensor's bytes in order, verified, in pieces. Raises DamagedError, or OSError."""


@contextmanager
def shared_payload(storage: Storage, manifest: Manifest) -> Iterator[Payload]:
    """The tensors that are equal on all ranks, and those of which each has a part."""
    if manifest.chunks is not None:
        yield ShardedPayload(storage, manifest)
        return
    with ThreadPoolExecutor(threads_for(runs_of(manifest)), thread_name_prefix="read-ahead") as pool:
        payload = FlatPayload(storage, manifest.layout, runs_of(manifest, PIECE), pool)
        try:
            yield payload
        finally:
            payload.stop()


@contextmanager
def own_payload(storage: Storage, manifest: Manifest, rank: int) -> Iterator[tuple[Any, Payload]]:
    """What belonged to this rank alone: its skeleton, and the tensors of that."""
    skeleton, plan, runs, _ = read_rank_file(storage, manifest, rank, PIECE)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        yield skeleton, FlatPayload(storage, plan, runs, pool)


def whole(payload: Payload, entry: Entry) -> bytearray:
    """All bytes of one tensor in memory."""
    data = bytearray(entry.nbytes)
    at = 0
    for piece in payload.read(entry):
        data[at : at + len(piece)] = piece
        at += len(piece)
    return data


class FlatPayload:
    """Reads ahead, so that who asks in the order of the entries need not wait, and keeps nothing of what is behind."""

    def __init__(self, storage: Storage, plan: Layout, runs: Sequence[Run], pool: ThreadPoolExecutor):
        check_sizes(storage, runs)
        self.entries: Sequence[Entry] = plan.entries
        self._storage = storage
        self._runs = [run for run in runs if run.span[0] < run.span[1]]  # a rank's slice may be empty
        self._starts = [run.span[0] for run in self._runs]
        self._pool = pool
        self._ahead: dict[int, Future[memoryview]] = {}

    def read(self, entry: Entry) -> Iterator[memoryview]:
        at = entry.offset
        while at < entry.end:
            number = bisect_right(self._starts, at) - 1
            start, stop = self._runs[number].span
            upto = min(stop, entry.end)
            yield self._data(number)[at - start : upto - start]
            at = upto

    def stop(self) -> None:
        while self._ahead:
            self._ahead.popitem()[1].cancel()

    def _data(self, number: int) -> memoryview:
        wanted = range(number, min(number + PIECE, len(self._runs)))
        for old in [old for old in self._ahead if old not in wanted]:
            self._ahead.pop(old).cancel()
        for new in wanted:
            if new not in self._ahead:
                self._ahead[new] = self._pool.submit(data_of, self._storage, self._runs[new])
        return self._ahead[number].result()


class ShardedPayload:
    """Puts each tensor together from its pieces, all of which are read at once."""

    def __init__(self, storage: Storage, manifest: Manifest):
        self.entries: Sequence[Entry] = manifest.layout.entries
        self._storage = storage
        self._manifest = manifest
        self._runs = runs_of(manifest)

    def read(self, entry: Entry) -> Iterator[memoryview]:
        item = ITEM_SIZES[entry.dtype]
        data = memoryview(bytearray(entry.nbytes))
        parts: list[tuple[int, memoryview]] = []
        scattered: list[tuple[Box, memoryview]] = []
        for box in self._manifest.boxes(entry):
            run, starts = rows_of(box, entry.shape)
            if len(starts) == 1:
                parts.append((box.address, data[starts[0] * item : (starts[0] + run) * item]))
            else:
                scattered.append((box, memoryview(bytearray(math.prod(box.sizes) * item))))
                parts.append((box.address, scattered[-1][1]))
        read_parts(self._storage, self._runs, parts)
        for box, piece in scattered:
            run, starts = rows_of(box, entry.shape)
            for i, start in enumerate(starts):
                data[start * item : (start + run) * item] = piece[i * run * item : (i + 1) * run * item]
        yield data


def rows_of(box: Box, shape: tuple[int, ...]) -> tuple[int, list[int]]:
    """How many elements of the box follow each other in the tensor too, and where in it each such row begins."""
    outer, run = len(shape), 1
    while outer and box.sizes[outer - 1] == shape[outer - 1]:
        outer -= 1
        run *= shape[outer]
    if outer:  # the last dimension that is cut: a part of it is still in one piece
        outer -= 1
        run *= box.sizes[outer]
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first = sum(map(math.prod, zip(box.offsets, strides, strict=True)))
    rows = itertools.product(*map(range, box.sizes[:outer]))
    return run, [first + sum(map(math.prod, zip(row, strides, strict=False))) for row in rows]
