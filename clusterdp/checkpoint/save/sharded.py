"""Saves sharded state (FSDP2) in clusterdp's own files.

torch.distributed.checkpoint plans which rank writes which piece of each tensor, so that a piece on several ranks is
written once. Pieces are staged in the same memory as slices of the flat buffer, and written in the same way: in the
background, without pickle, with a checksum for every block, and before the manifest.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from clusterdp.checkpoint.errors import FailedElsewhere, LostContact
from clusterdp.checkpoint.format.chunks import Chunk, Chunks, header, name_of
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.checkpoint.state.same_plan import SamePlan, enum_member
from clusterdp.checkpoint.state.tree import as_bytes, dtype_name, memory_of

if TYPE_CHECKING:
    from clusterdp.checkpoint.save.writer import Staging

_METADATA = "torch.distributed.checkpoint.metadata"
_PLANNER = "torch.distributed.checkpoint.planner"
ALLOWED = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata")),
    *((_METADATA, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_PLANNER, name) for name in ("SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")),
    ("torch.distributed.checkpoint.storage", "WriteResult"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("traceback", "FrameSummary"),  # a class in the error that a rank sends
    ("traceback", "StackSummary"),
}


class ShardPieces(NamedTuple):
    file: memoryview  # the content of this rank's file, valid until the next save
    chunks: Chunks | None  # the places of all ranks' pieces; on rank 0 only


@dataclass(frozen=True)
class SharedPlan:
    """The plan of all ranks, kept between saves: planning takes rank 0 about 80 us for each tensor of each rank."""

    request: SavePlan  # this rank's tensors, as it proposed to write them
    note_bytes: int  # size of the file's note; the first byte of each piece follows from this size
    agreed: SavePlan  # this rank's part of the plan
    chunks: Chunks | None


def copy(
    tensors: Mapping[str, torch.Tensor], staging: Staging, note: Mapping[str, str], ranks: RankGroup
) -> ShardPieces:
    """Collective. Copies this rank's pieces. After the return, the live tensors may change, although copies from a GPU
    are only queued."""
    memory = _Memory(staging, note, tensors)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    kept = staging.plan
    if _is_unchanged(kept, tensors, note, planner, ranks):
        assert kept is not None
        memory.write_data(kept.agreed, planner)
        return ShardPieces(memory.file, kept.chunks)
    staging.plan = None
    try:
        with plans_only():
            dcp.save(dict(tensors), storage_writer=memory, planner=planner, process_group=ranks.group)
    except CheckpointException as error:
        if ranks.rank not in error.failures:
            raise FailedElsewhere from None
        raise error.failures[ranks.rank][0] from error
    except pickle.UnpicklingError as error:  # the other ranks wait for this rank's part of the planning
        raise LostContact(f"checkpoint: the ranks cannot plan a save: {error}.") from error
    staging.plan = SharedPlan(memory.request, len(json.dumps(note)), memory.agreed, memory.chunks)
    return ShardPieces(memory.file, memory.chunks)


def _is_unchanged(
    kept: SharedPlan | None,
    tensors: Mapping[str, torch.Tensor],
    note: Mapping[str, str],
    planner: SavePlanner,
    ranks: RankGroup,
) -> bool:
    """Collective. Returns whether the kept plan is valid on all ranks. The planner then has the present tensors."""
    valid = False
    if kept is not None and kept.note_bytes == len(json.dumps(note)):
        with suppress(Exception):  # the planning that follows raises the error on all ranks
            planner.set_up_planner(dict(tensors), is_coordinator=ranks.rank == 0)
            valid = planner.create_local_plan() == kept.request
    return ranks.are_equal(bytes([valid] * 8)) and valid


class _Memory(SamePlan, StorageWriter):
    """The memory into which dcp.save() writes this rank's pieces."""

    def __init__(self, staging: Staging, note: Mapping[str, str], tensors: Mapping[str, torch.Tensor]):
        self._staging, self._note = staging, note
        self._names = tensors.keys()
        self.file = memoryview(b"")
        self.chunks: Chunks | None = None
        self.request = self.agreed = SavePlan([])

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self.request = plan
        return plan

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.agreed = plan
        pieces: dict[str, tuple[WriteItem, torch.Tensor]] = {}
        for item in plan.items:
            data = item.tensor_data
            if data is not None and data.chunk.sizes.numel():  # the last ranks have no part of a small tensor
                tensor: Any = planner.resolve_data(item)
                name = name_of(item.index.fqn, data.chunk.offsets, data.chunk.sizes, data.size)
                pieces[name] = (item, tensor.detach())
        plain = {name: (dtype_name(tensor), tuple(tensor.shape)) for name, (_, tensor) in pieces.items()}
        head, starts = header(plain, self._note)
        size = len(head) + sum(tensor.numel() * tensor.element_size() for _, tensor in pieces.values())
        file = self._staging.take(size, (tensor for _, tensor in pieces.values()))
        file[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        results = []
        for name, (item, tensor) in pieces.items():
            copied, start = as_bytes(tensor), starts[name]
            file[start : start + copied.numel()].copy_(copied, non_blocking=True)
            results.append(WriteResult(item.index, copied.numel(), (start, tuple(tensor.shape))))
        self.file = memory_of(file)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> None:
        found: dict[str, list[Chunk]] = {name: [] for name in self._names}
        for rank, written in enumerate(results):
            for result in written:
                start, sizes = result.storage_data
                offsets = tuple(result.index.offset or ())
                found[result.index.fqn].append(Chunk(rank, start, offsets, sizes))
        self.chunks = {name: tuple(chunks) for name, chunks in found.items()}


class Plans(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return enum_member
        found = getattr(sys.modules.get(module), name, None)  # this lookup does not import the module
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        if module == "torch" and isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
            return found
        raise pickle.UnpicklingError(f"a rank has sent a {module}.{name}, which no plan of a save needs")


@contextmanager
def plans_only() -> Iterator[None]:
    """While a sharded save is planned, restricts torch's unpickler to the classes of plans. During planning, torch's
    ranks send each other pickles over sockets that other users may reach. Call plans_only() in the main thread. While
    it holds, no other thread may send or receive objects. torch has no public option for this."""
    before = distributed_c10d._unpickler
    distributed_c10d._unpickler = Plans
    try:
        yield
    finally:
        distributed_c10d._unpickler = before
