"""Write this rank's share of a checkpoint. Nothing here talks to other ranks."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch

from clusterdp.checkpoint import layout
from clusterdp.checkpoint.layout import HEADER
from clusterdp.checkpoint.manifest import FileRecord
from clusterdp.checkpoint.reader import verify
from clusterdp.checkpoint.snapshot import Part
from clusterdp.checkpoint.tree import as_bytes, memory_of
from clusterdp.errors import CheckpointError
from clusterdp.storage import Storage

_CHUNK = 16 * layout.BLOCK  # bytes in one write


class Staging:
    """A file's worth of memory that is kept from save to save: HEADER bytes, then a slice of the flat buffer."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def fill(self, part: Part, start: int, stop: int, note: dict[str, str]) -> memoryview:
        """The file that holds the bytes [start, stop) of the flat buffer. Valid until the next call."""
        size = HEADER + stop - start
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size, dtype=torch.uint8)
        file = self._buffer[:size]
        file[:HEADER] = torch.frombuffer(bytearray(layout.safetensors_header(stop - start, note)), dtype=torch.uint8)
        body, end = file[HEADER:], 0
        for entry in part.layout.overlapping(start, stop):
            first, last = max(entry.offset, start), min(entry.end, stop)
            body[end : first - start].zero_()  # the gap that alignment has left: memory of an earlier save is in it
            end = last - start
            data = as_bytes(part.tensors[entry.name])
            body[first - start : end].copy_(data[first - entry.offset : last - entry.offset])
        body[end:].zero_()
        return memory_of(file)


class Writer:
    """Creates the files of one save on one rank, and knows what to take back if it comes to nothing."""

    def __init__(self, storage: Storage, folder: str, token: str, rank: int, world_size: int):
        self.storage = storage
        self.folder = folder
        self.token = token
        self.rank = rank
        self.world_size = world_size
        self.note = {"format": "clusterdp", "token": token, "rank": str(rank), "world_size": str(world_size)}

    def stage(self, staging: Staging, shared: Part) -> memoryview:
        """The file with this rank's slice, in memory: from here on, the live tensors may change."""
        start, stop = shared.layout.span(self.rank, self.world_size)
        note = {**self.note, "offset": str(start), "total": str(shared.layout.total)}
        return staging.fill(shared, start, stop, note)

    def write(self, staged: memoryview, own: Part, *, read_back: bool) -> dict[str, FileRecord]:
        """All files of this rank, durable on return, and what each must look like from now on."""
        self.storage.make_folder(self.folder)
        name = layout.slice_name(self.token, self.rank, self.world_size)
        records = {name: self._create(name, staged)}
        records |= self._write_own(own)
        self.storage.sync_folder(self.folder)
        if read_back:
            for name, record in records.items():
                self.storage.forget(f"{self.folder}/{name}")
                verify(self.storage, f"{self.folder}/{name}", record)
        return records

    def _write_own(self, own: Part) -> dict[str, FileRecord]:
        """What belongs to this rank alone."""
        records = {}
        if own.tensors:
            name = layout.local_name(self.token, self.rank)
            records[name] = self._create(name, Staging().fill(own, 0, own.layout.total, self.note))
        content = {**self.note, "state": own.skeleton, "index": own.layout.to_json()}
        name = layout.rank_name(self.token, self.rank)
        records[name] = self._create(name, memoryview(json.dumps(content, allow_nan=False).encode()))
        return records

    def _create(self, name: str, data: memoryview) -> FileRecord:
        # The checksums are of the memory, not of the file, and are computed while the bytes are on their way.
        with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
            crc32 = pool.submit(layout.checksums, data)
            try:
                self.storage.write(f"{self.folder}/{name}", _chunks(data))
            except OSError as error:
                path = f"{self.storage.url}/{self.folder}/{name}"
                raise CheckpointError(f"{path}: {error.strerror or error}. {_remedy(error)}") from error
            return FileRecord(len(data), tuple(crc32.result()))

    def discard(self) -> None:
        """Give back the space of a save that failed. Only if all have agreed on that: no manifest names the files."""
        names = (
            layout.slice_name(self.token, self.rank, self.world_size),
            layout.rank_name(self.token, self.rank),
            layout.local_name(self.token, self.rank),
        )
        for name in names:
            with suppress(OSError):  # the storage may be what has failed; what stays is cleaned up by a later attempt
                self.storage.remove(f"{self.folder}/{name}")
        self.storage.remove_folder(self.folder)


def _remedy(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free some space there, or keep fewer checkpoints."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "Make the folder writable for this user on every node."
    return "Look at the file system; the checkpoint before this one is as it was."


def _chunks(data: memoryview) -> Iterable[memoryview]:
    return (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
