"""RankWriter: writes one rank's files of a checkpoint. Only sharded state needs collectives in this module."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.checkpoint.errors import not_saved
from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.checksum import checksums
from clusterdp.checkpoint.format.chunks import Chunks
from clusterdp.checkpoint.format.layout import HEADER, FlatLayout
from clusterdp.checkpoint.format.manifest import FileRecord
from clusterdp.checkpoint.format.node_file import MOST_OWN, Room
from clusterdp.checkpoint.format.verified_reads import verify
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.state.buffer import HUGE, Buffer
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.checkpoint.state.tree import as_bytes, from_bytes, memory_of
from clusterdp.storage import Storage

if TYPE_CHECKING:
    from clusterdp.checkpoint.save.sharded import SharedPlan

_log = logging.getLogger(__name__)

_CHUNK = 16 * layout.BLOCK  # bytes in one write
_PORTABLE = 1  # flag cudaHostRegisterPortable: the memory is pinned for all devices of the process


class Staging:
    """Memory for one file, kept between saves. The file has HEADER bytes, and then a slice of the flat buffer."""

    def __init__(self) -> None:
        self._buffer = Buffer(0).tensor
        self._pinned: Any = None
        self._places: _Places | None = None
        self.plan: SharedPlan | None = None  # the plan of the last sharded save
        self._devices: set[torch.device] = set()  # GPUs from which the present content is copied

    def fill(self, part: StatePart, start: int, stop: int, note: dict[str, str]) -> memoryview:
        """Returns the file with the bytes [start, stop) of the flat buffer, valid until the next call.

        On return, copies from a GPU are only queued. To wait for these copies, call copied(), and then the function
        that it returns.
        """
        file = self.take(HEADER + stop - start, part.tensors.values())
        file[:HEADER] = torch.frombuffer(bytearray(layout.safetensors_header(stop - start, note)), dtype=torch.uint8)
        if self._places is None or self._places.of != (part.layout, start, stop):
            self._places = _Places(part.layout, start, stop, file[HEADER:])
        self._places.copy(part.tensors)
        return memory_of(file)

    def take(self, size: int, tensors: Iterable[torch.Tensor]) -> torch.Tensor:
        """Returns `size` bytes for copies of these tensors. The content of these bytes is still that of an earlier
        save."""
        before, self._devices = self._devices, {tensor.device for tensor in tensors if tensor.is_cuda}
        if self._buffer.numel() < size:
            for device in before:
                torch.cuda.synchronize(device)  # copies of a failed save may still be queued
            self._grow(size, pinned=bool(self._devices))
        return self._buffer[:size]

    def copied(self) -> Callable[[], None]:
        """Returns a function that waits until all copies from GPUs have arrived. Any thread may call this function."""
        # The copies are on the training's own streams: the kernels of the next step run after the copies, and the CPU
        # does not wait.
        # A copy runs on a stream of the GPU that it reads, so that each GPU needs an event.
        events = {device: torch.cuda.Event(blocking=True) for device in self._devices}  # type: ignore[no-untyped-call]
        for device, event in events.items():
            event.record(torch.cuda.current_stream(device))

        def wait() -> None:
            for device, event in events.items():
                with torch.cuda.device(device):  # else a new thread opens a context of 500 MB on GPU 0
                    event.synchronize()

        return wait

    def _grow(self, size: int, *, pinned: bool) -> None:
        """Allocates a larger buffer."""
        self._pinned = self._places = None
        self._buffer = Buffer(0).tensor  # the old buffer is freed first
        if pinned and size < HUGE:
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            return
        buffer = Buffer(size)
        self._buffer = buffer.tensor
        if pinned:
            # The buffer is registered with CUDA, because pin_memory=True would round the size up to a power of two.
            self._pinned = _registered(buffer)


@dataclass(frozen=True)
class StagingMemory:
    """The memory of a rank's saves. `shared` and `own` stay pinned between saves, because CUDA does not define what
    happens if memory is unpinned during a copy."""

    shared: Staging = field(default_factory=Staging)
    own: Staging = field(default_factory=Staging)


class _Places:
    """The place of each tensor in a slice, computed once because every save has the same places."""

    def __init__(self, plan: FlatLayout, start: int, stop: int, body: torch.Tensor):
        self.of = (plan, start, stop)
        self._names: list[str] = []
        self._views: list[torch.Tensor] = []
        self._pieces: list[tuple[str, slice, torch.Tensor]] = []  # parts of tensors that reach beyond the slice
        filled = start
        for entry in plan.overlapping(start, stop):
            first, last = max(entry.offset, start), min(entry.end, stop)
            body[filled - start : first - start].zero_()  # an alignment gap, which no copy fills
            filled = last
            place = body[first - start : last - start]
            if (first, last) == (entry.offset, entry.end):
                self._names.append(entry.name)
                self._views.append(from_bytes(place, entry.dtype, entry.shape))
            else:
                self._pieces.append((entry.name, slice(first - entry.offset, last - entry.offset), place))
        body[filled - start :].zero_()

    def copy(self, tensors: Mapping[str, torch.Tensor]) -> None:
        # One call copies all tensors, as in optimizers, because for small tensors a call of copy_() takes longer than
        # the copy.
        if self._views:  # there are no views if the slice lies within a single tensor, or if the state has no tensors
            torch._foreach_copy_(self._views, [tensors[name] for name in self._names], non_blocking=True)
        for name, part, place in self._pieces:
            place.copy_(as_bytes(tensors[name])[part], non_blocking=True)


def _registered(buffer: Buffer) -> _Registered | None:
    """Pins the buffer. If the system cannot pin memory (gVisor, some containers), prints a warning and returns None;
    copies are then slower."""
    try:
        pinned = _Registered(buffer.tensor)
    except RuntimeError as error:
        with suppress(Exception):
            torch.zeros(1, device="cuda")  # clears the error, which the next kernel would otherwise report
        _log.warning("a save copies from the GPU through memory that is not pinned: %s", str(error).split("\n")[0])
        return None
    buffer.hide_from_children()
    return pinned


class _Registered:
    """Memory that is pinned for copies from the GPU as long as this object exists."""

    def __init__(self, buffer: torch.Tensor):
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(int(runtime.cudaHostRegister(buffer.data_ptr(), buffer.numel(), _PORTABLE)))
        self._address = buffer.data_ptr()

    def __del__(self) -> None:
        with suppress(Exception):
            torch.cuda.cudart().cudaHostUnregister(self._address)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Staged:
    """The bytes that this rank will write. They are copies, so that the live tensors may change."""

    slice: memoryview
    local: memoryview | None
    rank_file: bytes
    waits: Sequence[Callable[[], None]]  # functions that wait for copies from GPUs
    chunks: Chunks | None = None  # on rank 0, for sharded state: the places of all ranks' pieces
    flat: FlatLayout | None = None  # None: the state is sharded

    @property
    def needs(self) -> tuple[int, int]:
        """The bytes that this rank has for the file of its node: its own state, and pieces if the state is sharded."""
        own = len(self.rank_file) + len(self.local or b""), len(self.rank_file)
        return next((size for size in own if size <= MOST_OWN), 0), 0 if self.flat else len(self.slice)


class RankWriter:
    """Creates the files of one save on one rank, and deletes these files if the save fails."""

    room = Room()  # in the file of the node, which only a NodeWriter writes

    def __init__(self, storage: Storage, folder: str, token: str, ranks: RankGroup):
        self.storage = storage
        self.folder = folder
        self.token = token
        self.ranks, self.rank, self.world_size = ranks, ranks.rank, ranks.size
        self.note = {
            "format": "clusterdp",
            "token": token,
            "rank": str(ranks.rank),
            "world_size": str(ranks.size),
        }

    def stage(self, memory: StagingMemory, shared: StatePart, own: StatePart) -> Staged:
        """Copies this rank's share of the shared state, and its own state. Collective if the state is sharded."""
        file, chunks = self._stage_shared(memory.shared, shared)
        local = memory.own.fill(own, 0, own.layout.total, self.note) if own.tensors else None
        waits = [memory.shared.copied(), *([memory.own.copied()] if local is not None else [])]
        content = {**self.note, "state": own.skeleton, "index": own.layout.to_json(), "strides": own.strides}
        return Staged(
            file,
            local,
            json.dumps(content, allow_nan=False).encode(),
            waits,
            chunks,
            None if shared.sharded else shared.layout,
        )

    def _stage_shared(self, staging: Staging, shared: StatePart) -> tuple[memoryview, Chunks | None]:
        if shared.sharded:
            from clusterdp.checkpoint.save import sharded  # imported late, because the import takes 2 s

            return sharded.copy(shared.tensors, staging, self.note, self.ranks)
        start, stop = shared.layout.span(self.rank, self.world_size)
        note = {**self.note, "offset": str(start), "total": str(shared.layout.total)}
        return staging.fill(shared, start, stop, note), None

    def write(self, staged: Staged, *, read_back: bool) -> dict[str, FileRecord]:
        """Writes all files of this rank. The bytes are durable when each rank has returned. Returns the record of each
        file."""
        for wait in staged.waits:
            wait()
        try:
            self.storage.make_folder(self.folder)
            records = self._write(staged, sync=read_back)
            if read_back:
                for name, record in records.items():
                    path = f"{self.folder}/{name}"
                    self.storage.forget(record.path(path))
                    verify(self.storage, path, record)
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{self.folder}", error) from error
        return records

    def _write(self, staged: Staged, *, sync: bool) -> dict[str, FileRecord]:
        """Writes the files. sync: whether this rank's bytes are durable on return, whatever other ranks do."""
        return self._write_files(self._files(staged))

    def _files(self, staged: Staged) -> dict[str, memoryview]:
        slice_file, rank_file, local_file = self._names()
        local = {} if staged.local is None else {local_file: staged.local}
        return {slice_file: staged.slice, **local, rank_file: memoryview(staged.rank_file)}

    def _write_files(self, files: Mapping[str, memoryview]) -> dict[str, FileRecord]:
        records = {name: self._create(name, data) for name, data in files.items()}
        self.storage.sync_folder(self.folder)
        return records

    def _names(self) -> tuple[str, str, str]:
        token, rank = self.token, self.rank
        return (
            layout.slice_name(token, rank, self.world_size),
            layout.rank_name(token, rank),
            layout.local_name(token, rank),
        )

    def _create(self, name: str, data: memoryview) -> FileRecord:
        # Checksums are computed from the memory, not from the file, while the bytes are written.
        with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
            sums = pool.submit(checksums, data)
            try:
                self._in_folder(lambda: self.storage.write(f"{self.folder}/{name}", in_pieces(data)))
            except OSError as error:
                raise not_saved(f"{self.storage.url}/{self.folder}/{name}", error) from error
            return FileRecord(len(data), sums.result())

    def _in_folder(self, write: Callable[[], None]) -> None:
        for _ in range(self.world_size):
            try:
                return write()
            except FileNotFoundError:
                # A save of this step has just failed, and the clean-up on one rank has removed the empty folder. Each
                # rank removes the folder only once.
                self.storage.make_folder(self.folder)
        return write()

    def discard(self) -> None:
        """Deletes the files of a save that failed. Call discard() only after all ranks have agreed on the failure,
        because then no manifest names the files."""
        for name in self._names():
            with suppress(OSError):  # the storage itself may have failed; a later attempt removes the remaining files
                self.storage.remove(f"{self.folder}/{name}")
        with suppress(OSError):
            self.storage.remove_folder(self.folder)


def in_pieces(data: memoryview) -> Iterable[memoryview]:
    return (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
