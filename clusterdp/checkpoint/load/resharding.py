"""Reads state into tensors that are sharded in another way than at the save, or not sharded. Each rank reads only its
part.

torch.distributed.checkpoint computes which parts of which chunks make up this rank's part of each tensor, for flat and
for sharded checkpoints. verified_reads reads and verifies the blocks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.distributed.checkpoint import state_dict_loader as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import empty as distributed_empty
from torch.futures import Future

from clusterdp.checkpoint.format.layout import FlatLayout, TensorEntry
from clusterdp.checkpoint.format.manifest import Box, Manifest
from clusterdp.checkpoint.format.verified_reads import ranges_of, read_parts
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.checkpoint.state.same_plan import SamePlan
from clusterdp.checkpoint.state.tree import DTYPES, as_bytes, from_bytes, is_sharded, key_of, memory_of
from clusterdp.storage import Storage


def live_tensors(
    state: Mapping[str, Any], orders: Mapping[str, list[int] | None] = MappingProxyType({})
) -> dict[str, torch.Tensor]:
    """Returns the objects' current tensors by their names in a checkpoint. For `optimizer/state/0`, returns the
    parameter 0 itself, because state that the optimizer has not made yet will be sharded like the parameter. orders:
    optimizer -> for each parameter its number in the checkpoint, if the numbers differ."""
    found: dict[str, torch.Tensor] = {}
    for name, thing in state.items():
        tree, order = thing.state_dict(), orders.get(name)
        if order is not None:
            tree = {**tree, "state": {order[i]: of for i, of in tree["state"].items()}}
        found |= dict(_leaves(tree, name))
        if isinstance(thing, torch.optim.Optimizer):
            parameters = [parameter for group in thing.param_groups for parameter in group["params"]]
            numbers = range(len(parameters)) if order is None else order
            found |= {key_of(name, "state", i): parameter for i, parameter in zip(numbers, parameters, strict=True)}
    return found


def _leaves(tree: Any, *path: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield key_of(*path), tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _leaves(item, *path, key)
    elif isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            yield from _leaves(item, *path, i)


def read(
    storage: Storage, manifest: Manifest, live: Mapping[str, torch.Tensor], names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """Returns all tensors, or those with these names, in new memory: sharded if the live tensor is sharded, else whole.
    Not collective.

    Raises DamagedError or OSError.
    """
    entries = [entry for entry in manifest.layout.entries if names is None or entry.name in names]
    target: dict[str, Any] = {entry.name: _like_entry(manifest, entry, live) for entry in entries}
    load(target, CheckpointReader(storage, manifest))
    return target


def whole_names(manifest: Manifest, live: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Returns the tensors that each rank has whole, with the rank whose file has them."""
    found = {}
    for entry in manifest.layout.entries:
        if not is_sharded(_like_entry(manifest, entry, live)):
            found[entry.name] = (manifest.chunks or {})[entry.name][0].rank if entry.nbytes else 0
    return found


def read_whole(
    storage: Storage, manifest: Manifest, of: Mapping[str, int], ranks: RankGroup
) -> dict[str, torch.Tensor]:
    """Returns tensors that are whole on each rank. Each rank reads those in its file, and sends them to the others.
    Collective. Raises DamagedError or CheckpointError on all ranks."""
    found: dict[str, torch.Tensor] = {}
    failure = None
    for source in range(ranks.size):
        names = {name for name, rank in of.items() if rank == source}
        shapes = {e.name: (e.dtype, e.shape) for e in manifest.layout.entries if e.name in names}
        plan = FlatLayout.of(shapes)
        data = torch.zeros(plan.total, dtype=torch.uint8)
        if source == ranks.rank:
            mine, failure = tried(partial(read, storage, manifest, {}, names))
            for entry in plan.entries if mine else ():
                data[entry.offset : entry.end] = as_bytes((mine or {})[entry.name])
        ranks.broadcast(data, source)
        found |= {e.name: from_bytes(data[e.offset : e.end], e.dtype, e.shape).clone() for e in plan.entries}
    ranks.agree(failure)
    return found


def spread(tree: Any, live: Mapping[str, torch.Tensor], *path: Any) -> Any:
    """Returns a copy of the tree, with this rank's part instead of each whole tensor that is sharded here."""
    if isinstance(tree, torch.Tensor):
        if is_sharded(tree):
            return tree
        name = key_of(*path)
        target: dict[str, Any] = {name: like(name, tree.dtype, tuple(tree.shape), live)}
        load(target, _TensorReader(name, tree))
        return replicated(target, live)[name]
    if isinstance(tree, dict):
        parts = ((key, spread(item, live, *path, key)) for key, item in tree.items())
        made = type(tree)(parts)
        if hasattr(tree, "_metadata"):  # `_metadata` has the versions of the modules' formats
            made._metadata = tree._metadata  # type: ignore[attr-defined]
        return made
    if type(tree) in (list, tuple):
        return type(tree)(spread(item, live, *path, i) for i, item in enumerate(tree))
    return tree


def like(
    name: str, dtype: torch.dtype, shape: tuple[int, ...], live: Mapping[str, torch.Tensor], split: int | None = None
) -> torch.Tensor:
    """Returns an empty tensor, sharded like the live tensor of the same name, or like the parameter to which the state
    belongs. split: the dimension in which state of another shape than its parameter's was sharded, such as a number
    for each row."""
    model: Any = live.get(name, live.get(name.rpartition("/")[0]))
    if model is not None and is_sharded(model):
        if tuple(model.shape) == shape:
            return torch.empty_like(model, dtype=dtype, requires_grad=False)
        if split is not None:
            placements = [Shard(split) if placement.is_shard() else placement for placement in model.placements]
            return distributed_empty(shape, dtype=dtype, device_mesh=model.device_mesh, placements=placements)
    return torch.empty(shape, dtype=dtype)


def _like_entry(manifest: Manifest, entry: TensorEntry, live: Mapping[str, torch.Tensor]) -> torch.Tensor:
    dims = {dim for chunk in (manifest.chunks or {}).get(entry.name, ()) for dim, at in enumerate(chunk.offsets) if at}
    split = dims.pop() if len(dims) == 1 else None
    return like(entry.name, DTYPES[entry.dtype], entry.shape, live, split)


def replicated(tensors: Mapping[str, torch.Tensor], live: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns the tensors, with a DTensor in place of each plain one that an optimizer keeps for a sharded parameter,
    because torch refuses to compute with both. Tensors without a dimension, such as counts of steps, stay plain."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        parameter: Any = None if name in live else live.get(name.rpartition("/")[0])
        if parameter is not None and is_sharded(parameter) and not is_sharded(tensor) and tensor.dim():
            placements = [Replicate()] * parameter.device_mesh.ndim
            found[name] = DTensor.from_local(
                tensor.to(parameter.device), parameter.device_mesh, placements, run_check=False
            )
    return found


def load(target: dict[str, Any], reader: StorageReader, planner: DefaultLoadPlanner | None = None) -> None:
    """Calls dcp.load() for this rank alone. The caller agrees with the other ranks on the result."""
    planner = planner or DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            dcp.load(target, storage_reader=reader, planner=planner, no_dist=True)
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None


class _TensorReader(SamePlan, StorageReader):
    """Reads from a tensor in memory."""

    def __init__(self, name: str, tensor: torch.Tensor):
        self._name, self._tensor = name, tensor

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        size = self._tensor.shape
        chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
        return Metadata({self._name: TensorStorageMetadata(TensorProperties(self._tensor.dtype), size, [chunk])})

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            box = tuple(slice(at, at + n) for at, n in zip(item.storage_offsets, item.lengths, strict=True))
            planner.resolve_tensor(item).detach().copy_(self._tensor[box])
        return _done()


class CheckpointReader(SamePlan, StorageReader):
    """Reads a checkpoint, flat or sharded, for dcp.load()."""

    def __init__(self, storage: Storage, manifest: Manifest):
        self._storage, self._manifest = storage, manifest
        self._boxes: dict[tuple[str, tuple[int, ...]], Box] = {}
        self._dtypes = {entry.name: DTYPES[entry.dtype] for entry in manifest.layout.entries}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        for entry in self._manifest.layout.entries:
            boxes = self._manifest.boxes(entry)
            self._boxes |= {(entry.name, box.offsets): box for box in boxes}
            chunks = [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in boxes]
            properties = TensorProperties(dtype=self._dtypes[entry.name])
            tensors[entry.name] = TensorStorageMetadata(properties, torch.Size(entry.shape), chunks)
        return Metadata(tensors)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        parts: list[tuple[int, memoryview]] = []
        detours: list[tuple[torch.Tensor, torch.Tensor]] = []
        for item in plan.items:
            if not item.lengths.numel():
                continue
            into = planner.resolve_tensor(item).detach()
            address, raw, through = self._part(item, into)
            parts.append((address, memory_of(raw)))
            if through is not None:
                detours.append((into, through))
        read_parts(self._storage, ranges_of(self._manifest), parts)
        for into, through in detours:
            into.copy_(through)
        return _done()

    def _part(self, item: ReadItem, into: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor | None]:
        """Returns the address of the item's first byte, the memory to read into, and a view of this memory, which is
        then copied into the tensor. The view is None if the memory is the tensor's own."""
        name = item.storage_index.fqn
        box = self._boxes[name, tuple(item.storage_index.offset or ())]
        dtype = self._dtypes[name]
        strides = [math.prod(box.sizes[d + 1 :]) for d in range(len(box.sizes))]
        first = sum(offset * stride for offset, stride in zip(item.storage_offsets, strides, strict=True))
        count = 1 + sum((length - 1) * stride for length, stride in zip(item.lengths, strides, strict=True))
        address = box.address + first * dtype.itemsize
        if into.device.type == "cpu" and into.dtype == dtype and into.is_contiguous() and into.numel() == count:
            return address, as_bytes(into), None
        raw = torch.empty(count, dtype=dtype)
        return address, as_bytes(raw), raw.as_strided(tuple(item.lengths), strides)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future
