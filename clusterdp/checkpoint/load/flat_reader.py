"""Verified bytes as tensors: the flat buffer, which all ranks read together, and the state of one rank alone.

If reading twice is cheap (Storage.rereads), the bytes of a live tensor are read directly into this tensor. Such a
restore needs no extra memory, except one block for each reading thread if tensors are on a GPU. The first read changes
no tensor: each rank only verifies its share. The second read fills the tensors and verifies again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from clusterdp.checkpoint.format.layout import FlatLayout, TensorEntry
from clusterdp.checkpoint.format.manifest import Manifest
from clusterdp.checkpoint.format.read_targets import BufferTarget, DiscardTarget, ScatterTarget
from clusterdp.checkpoint.format.verified_reads import BlockRange, check_sizes, ranges_of, read_ranges, read_rank_file
from clusterdp.checkpoint.state.buffer import Buffer
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.checkpoint.state.tree import DTYPES, as_bytes, copied, from_bytes, memory_of, unflatten
from clusterdp.storage import Storage

# Up to this number of nodes, each rank reads all bytes: the storage can serve so few nodes, and the ranks of a node
# share the node's page cache, which is faster than the network. With more nodes, each rank reads a share and broadcasts
# it, so that the storage delivers every byte only once.
READ_ALL_NODES = 8


class FlatReader:
    """Reads the flat buffer. `tensors`: views of the buffer, or live tensors that fill() fills."""

    def __init__(self, storage: Storage, manifest: Manifest, ranks: RankGroup, live: Mapping[str, torch.Tensor]):
        """Reads and verifies this rank's share. Not collective. live: tensors with the names, shapes and dtypes of the
        manifest, which fill() may overwrite."""
        self._storage, self._ranks = storage, ranks
        self._ranges = ranges_of(manifest)
        plan = manifest.layout
        self._together = ranks.nodes <= READ_ALL_NODES
        self._live = live if self._together and storage.rereads else {}
        apart, direct = _divide(self._ranges, plan, self._live) if self._together else (self._share(ranks.rank), [])
        check_sizes(storage, self._ranges if self._together else apart)  # first: a bad manifest may demand much memory
        self.buffer = Buffer(plan.total)  # pages that are never touched take no memory
        read_ranges(storage, apart, BufferTarget(memory_of(self.buffer.tensor)))
        read_ranges(storage, direct[ranks.rank :: ranks.size], DiscardTarget())
        self._apart, self._direct = apart, direct
        self.tensors = {**tensors_of(plan, self.buffer.tensor), **self._live}
        self._plan = plan

    def exchange(self) -> None:
        """Broadcasts each rank's share to all ranks. The shares follow each other in the buffer without a gap."""
        for source in range(self._ranks.size) if not self._together else ():
            share = self._share(source)
            if share:
                self._ranks.broadcast(self.buffer.tensor[share[0].span[0] : share[-1].span[1]], source)

    def fill(self) -> None:
        """Reads into the live tensors. Raises DamagedError if the bytes have changed since they were verified."""
        if not self._live:
            return
        pieces = ScatterTarget(
            [
                (e.offset, _memory(as_bytes(self._live[e.name].detach())))
                for e in self._plan.entries
                if e.name in self._live
            ]
        )
        whole = memory_of(self.buffer.tensor)
        for start, stop in (blocks.span for blocks in self._apart):
            pieces.scatter(start, whole[start:stop])
        read_ranges(self._storage, self._direct, pieces)

    def _share(self, rank: int) -> list[BlockRange]:
        size = self._ranks.size
        return self._ranges[len(self._ranges) * rank // size : len(self._ranges) * (rank + 1) // size]


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
        for number in range(blocks.first, blocks.last):
            one = replace(blocks, first=number, last=number + 1)
            start, stop = one.span
            while other is not None and other.end <= start:
                other = next(others)
            kind = apart if other is not None and other.offset < stop else direct
            before = kind[-1] if kind else None
            if before is not None and number > blocks.first and (before.name, before.last) == (blocks.name, number):
                kind[-1] = replace(before, last=number + 1)
            else:
                kind.append(one)
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


def _memory(data: torch.Tensor) -> memoryview | _OnDevice:
    return _OnDevice(data) if data.is_cuda else memory_of(data)


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


def tensors_of(plan: FlatLayout, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the tensors as views of the flat buffer."""
    return {e.name: from_bytes(buffer[e.offset : e.end], e.dtype, e.shape) for e in plan.entries}


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
