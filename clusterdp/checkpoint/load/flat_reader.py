"""Verified bytes as tensors: the flat buffer, which all ranks read together, and the state of one rank alone.

The bytes of a live tensor are read directly into this tensor, so that a restore needs no extra memory except a few
blocks. Each block is read into its place and verified there, while it is in the processor's cache: if one is damaged,
tensors that were filled before it have changed, and the whole state comes from an older checkpoint. Where there is
none to fall back on (Storage.verifies_first), a first read only verifies.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from clusterdp.checkpoint.format.layout import FlatLayout, TensorEntry
from clusterdp.checkpoint.format.manifest import Manifest, expected_files
from clusterdp.checkpoint.format.read_targets import BufferTarget, DiscardTarget, ScatterTarget
from clusterdp.checkpoint.format.verified_reads import (
    BlockRange,
    check_sizes,
    ranges_of,
    read_range,
    read_ranges,
    read_rank_file,
)
from clusterdp.checkpoint.state.buffer import Buffer
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.checkpoint.state.tree import DTYPES, as_bytes, copied, from_bytes, memory_of, unflatten
from clusterdp.storage import Storage

AHEAD = 4  # ranges (of up to 16 MB) that a rank reads before their broadcast: more ranks read while one sends
Turn = tuple[int, BlockRange]  # a range, and the rank that reads it and sends it to the others


class FlatReader:
    """Reads the flat buffer. `tensors`: views of the buffer, or live tensors that fill() fills."""

    def __init__(self, storage: Storage, manifest: Manifest, ranks: RankGroup, live: Mapping[str, torch.Tensor]):
        """Reads what has no live tensor. Not collective. live: tensors with the names, shapes and dtypes of the
        manifest, which fill() may overwrite. If is_alone() is False, all ranks must have live tensors of the same
        names."""
        self._storage, self._ranks, self._plan, self._live = storage, ranks, manifest.layout, live
        ranges = ranges_of(manifest)
        names = (f"{manifest.info.folder}/{name}" for name, _ in expected_files(manifest.info))
        self._writers = {name: rank for rank, name in enumerate(names)}  # file -> the rank that has written it
        self._alone = is_alone(storage, ranks)
        self._apart, self._direct = _divide(ranges, self._plan, live)
        own = [one for rank, one in self._turns(self._direct if self._alone else ranges) if rank == ranks.rank]
        check_sizes(storage, ranges if self._alone else own)  # first: a bad manifest may demand much memory
        self.buffer = Buffer(self._plan.total)  # pages that are never touched take no memory
        if self._alone:
            read_ranges(storage, self._apart, BufferTarget(memory_of(self.buffer.tensor)), ranks.on_node)
        if storage.verifies_first:
            read_ranges(storage, own, DiscardTarget(), ranks.on_node)
        self.tensors = {**tensors_of(self._plan, self.buffer.tensor, live), **live}

    def exchange(self) -> None:
        """Fills the buffer. Collective. Raises DamagedError or CheckpointError on all ranks."""
        self._send(self._apart, ScatterTarget([(0, memory_of(self.buffer.tensor))]).scatter)

    def fill(self) -> None:
        """Fills the live tensors. Collective. Raises DamagedError or CheckpointError on all ranks if bytes are wrong;
        some live tensors may then have changed."""
        failure = None
        pieces = ScatterTarget(
            [(e.offset, _memory(self._live[e.name].detach())) for e in self._plan.entries if e.name in self._live]
        )
        whole = memory_of(self.buffer.tensor)
        for start, stop in (blocks.span for blocks in self._apart):
            pieces.scatter(start, whole[start:stop])
        if self._alone:
            _, failure = tried(lambda: read_ranges(self._storage, self._direct, pieces, self._ranks.on_node))
            self._ranks.agree(failure)
        else:
            self._send(self._direct, pieces.scatter)

    def _send(self, ranges: Sequence[BlockRange], put: Callable[[int, memoryview], None]) -> None:
        """Each rank reads a share of the ranges and broadcasts it; put(start, data) gets the bytes of every range. All
        ranks stop at the first range that cannot be read."""
        if self._alone:
            return
        turns, failure = self._turns(ranges), None
        mine = iter([blocks for source, blocks in turns if source == self._ranks.rank])
        with ThreadPoolExecutor(AHEAD, thread_name_prefix="restore") as pool:
            waiting = deque(pool.submit(self._read, blocks) for blocks in islice(mine, AHEAD))
            for source, blocks in turns:
                start, stop = blocks.span
                if source == self._ranks.rank:
                    data, failure = waiting.popleft().result()
                    waiting.extend(pool.submit(self._read, later) for later in islice(mine, 1))
                else:
                    data = torch.empty(stop - start + 1, dtype=torch.uint8)
                self._ranks.broadcast(data, source)
                if not data[-1]:
                    break
                put(start, memory_of(data)[:-1])
            pool.shutdown(cancel_futures=True)
        self._ranks.agree(failure)

    def _turns(self, ranges: Sequence[BlockRange]) -> list[Turn]:
        """Returns the order in which the ranges are sent. The ranks take turns."""
        if not self._storage.is_divided:
            return [(number % self._ranks.size, blocks) for number, blocks in enumerate(ranges)]
        seen: Counter[int] = Counter()
        order = []
        for blocks in ranges:
            writer = self._writers[blocks.name]
            order.append((seen[writer], writer, blocks))
            seen[writer] += 1
        return [(writer, blocks) for _, writer, blocks in sorted(order, key=lambda one: one[:2])]

    def _read(self, blocks: BlockRange) -> tuple[torch.Tensor, Exception | None]:
        """Returns the verified bytes and a 1, or any bytes, a 0, and the error."""
        start, stop = blocks.span
        data = torch.zeros(stop - start + 1, dtype=torch.uint8)
        _, failure = tried(lambda: read_range(self._storage, blocks, BufferTarget(memory_of(data)[:-1], start)))
        data[-1] = failure is None
        return data, failure


def is_alone(storage: Storage, ranks: RankGroup) -> bool:
    """Returns whether each rank reads all bytes itself."""
    return ranks.size == 1 or ranks.nodes <= storage.nodes_that_read_all


def _divide(
    ranges: Sequence[BlockRange], plan: FlatLayout, live: Mapping[str, torch.Tensor]
) -> tuple[list[BlockRange], list[BlockRange]]:
    """Returns the ranges of blocks with bytes of tensors that are not live, and the ranges of all other blocks."""
    if not live:
        return [*ranges], []
    apart: list[BlockRange] = []
    direct: list[BlockRange] = []
    others = iter([*(entry for entry in plan.entries if entry.name not in live and entry.nbytes), None])
    other = next(others)
    for blocks in ranges:
        first, (start, stop) = blocks.first, blocks.span
        while first < blocks.last:
            while other is not None and (other.end <= start or blocks.holding(other.end - 1) < first):
                other = next(others)
            kind, until = direct, blocks.last
            if other is not None and other.offset < stop:
                until = max(blocks.holding(other.offset), first)
            if until == first:  # the next bytes that are not live begin in this block
                assert other is not None
                kind, until = apart, min(blocks.last, blocks.holding(other.end - 1) + 1)
            before = kind[-1] if kind else None
            if before is not None and first > blocks.first and (before.name, before.last) == (blocks.name, first):
                kind[-1] = replace(before, last=until)
            else:
                kind.append(replace(blocks, first=first, last=until))
            first = until
    return apart, direct


class _OnDevice:
    """The bytes of a tensor on a GPU. When write() returns, the copy is complete, because a thread's block is not
    pinned memory."""

    def __init__(self, data: torch.Tensor):
        self._data = data

    def __len__(self) -> int:
        return self._data.numel()

    def write(self, at: int, data: memoryview) -> None:
        self._data[at : at + len(data)].copy_(torch.frombuffer(data, dtype=torch.uint8))


def _memory(tensor: torch.Tensor) -> memoryview | _OnDevice:
    return _OnDevice(as_bytes(tensor)) if tensor.is_cuda else memory_of(tensor)


def live_tensors(plan: FlatLayout, found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors of `found` into which bytes can be read: in CPU memory or on a GPU, with the saved shape and
    dtype, and without overlap."""
    fitting = [(found[e.name], e) for e in plan.entries if e.name in found and _fits(found[e.name], e)]
    live: dict[str, torch.Tensor] = {}
    end = 0
    for tensor, entry in sorted(fitting, key=lambda pair: pair[0].data_ptr()):
        if tensor.data_ptr() >= end:
            live[entry.name] = tensor
            end = tensor.data_ptr() + entry.nbytes
    return live


def new_tensors(
    plan: FlatLayout, devices: Mapping[str, torch.device], live: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Returns new tensors to read into, for names in `devices` that have no live tensor, such as a new optimizer's
    moments. If these were read through the flat buffer, each rank of a node would hold all of them in CPU memory."""
    return {
        entry.name: torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device=devices[entry.name])
        for entry in plan.entries
        if entry.name in devices and entry.name not in live and entry.nbytes
    }


def read_own(storage: Storage, manifest: Manifest, rank: int) -> Any:
    """Returns the state that only this rank has."""
    skeleton, plan, ranges, strides = read_rank_file(storage, manifest, rank)
    buffer = torch.empty(plan.total, dtype=torch.uint8)
    read_ranges(storage, ranges, BufferTarget(memory_of(buffer)))
    # Tensors are copied, because torch.Generator.set_state() reads a view from the start of the view's storage, and
    # crashes on these bytes.
    views = tensors_of(plan, buffer)
    return unflatten(skeleton, {name: copied(view, strides.get(name)) for name, view in views.items()})


def tensors_of(plan: FlatLayout, buffer: torch.Tensor, known: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """Returns the tensors, without the known ones, as views of the flat buffer."""
    others = (e for e in plan.entries if e.name not in known)
    return {e.name: from_bytes(buffer[e.offset : e.end], e.dtype, e.shape) for e in others}


def _fits(tensor: torch.Tensor, entry: TensorEntry) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and (tensor.device.type == "cpu" or tensor.is_cuda)
        and tensor.layout == torch.strided
        and (tensor.dtype, tensor.shape) == (DTYPES.get(entry.dtype), entry.shape)
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
        and entry.nbytes > 0
    )
