"""Read checkpoints, and believe no byte that its checksum does not vouch for. Nothing here talks to other ranks."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from clusterdp.checkpoint import layout
from clusterdp.checkpoint.layout import BLOCK, HEADER, Layout
from clusterdp.checkpoint.manifest import CheckpointInfo, FileRecord, Manifest, decode, expected_files
from clusterdp.checkpoint.tree import from_bytes, memory_of, unflatten
from clusterdp.errors import DamagedError
from clusterdp.storage import Readable, Storage

T = TypeVar("T")
_RUN = 16  # blocks that a thread reads from one open file


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of one of our safetensors files, and where its data begins in the buffer to fill."""

    name: str
    record: FileRecord
    first: int
    last: int
    at: int

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of the buffer that these blocks fill."""
        start = max(self.first * BLOCK - HEADER, 0)
        return self.at + start, self.at + min(self.last * BLOCK, self.record.size) - HEADER


def read_manifest(storage: Storage, info: CheckpointInfo) -> Manifest:
    """Raises DamagedError if it is not what was written, in two reads."""
    return twice(storage, info.name, lambda: decode(storage.read(info.name), info.name))


def runs_of(manifest: Manifest) -> list[Run]:
    """All blocks of all slices, in the order of the flat buffer."""
    info = manifest.info
    runs: list[Run] = []
    for rank, (name, _) in enumerate(expected_files(info)):
        runs += _runs(f"{info.folder}/{name}", manifest.files[name], manifest.layout.cut(rank, info.world_size))
    return runs


def _runs(name: str, record: FileRecord, at: int) -> Iterator[Run]:
    blocks = len(record.crc32)
    return (Run(name, record, first, min(first + _RUN, blocks), at) for first in range(0, blocks, _RUN))


def read_runs(storage: Storage, runs: list[Run], into: torch.Tensor | None) -> None:
    """Verify the blocks and, unless `into` is None, leave their data there. Raises DamagedError, or OSError."""
    buffer = None if into is None else memory_of(into)
    threads = min(4, len(runs), os.cpu_count() or 1)
    if threads <= 1:
        for run in runs:
            _read_run(storage, run, buffer)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda run: _read_run(storage, run, buffer), runs):
            pass  # the first error is raised here


def check_sizes(storage: Storage, runs: list[Run]) -> None:
    """Raises DamagedError if a file of the runs is not there, or not as long as it was."""
    for name, record in {run.name: run.record for run in runs}.items():
        twice(storage, name, lambda name=name, record=record: _check_size(storage, name, record))  # type: ignore[misc]


def verify(storage: Storage, name: str, record: FileRecord) -> None:
    """A file of any kind against its record."""
    runs = list(_runs(name, record, 0))
    check_sizes(storage, runs)
    read_runs(storage, runs, None)


def read_own(storage: Storage, manifest: Manifest, rank: int) -> Any:
    """What belonged to this rank alone."""
    info = manifest.info
    name, local = layout.rank_name(info.data, rank), layout.local_name(info.data, rank)
    path = f"{info.folder}/{name}"
    data = torch.empty(manifest.files[name].size, dtype=torch.uint8)
    verify_into = memory_of(data)
    twice(storage, path, lambda: _read_whole(storage, path, manifest.files[name], verify_into))
    content = json.loads(bytes(verify_into))
    plan = Layout.from_json(content["index"])
    buffer = torch.empty(plan.total, dtype=torch.uint8)
    if local in manifest.files:
        runs = list(_runs(f"{info.folder}/{local}", manifest.files[local], 0))
        check_sizes(storage, runs)
        read_runs(storage, runs, buffer)
    return unflatten(content["state"], tensors_of(plan, buffer))


def tensors_of(plan: Layout, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors as views of the flat buffer."""
    return {e.name: from_bytes(buffer[e.offset : e.end], e.dtype, e.shape) for e in plan.entries}


def twice(storage: Storage, name: str, look: Callable[[], T]) -> T:
    """What `look` finds. A cache or a flaky link may show other bytes once: only a second look makes it damage."""
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
    if size != record.size:
        raise DamagedError(f"{name}: it has {size} bytes instead of {record.size}. It was cut or overwritten.")


def _read_run(storage: Storage, run: Run, buffer: memoryview | None) -> None:
    scratch = None if buffer is not None else memoryview(bytearray(BLOCK))
    with storage.open(run.name) as file:
        wrong = [number for number in range(run.first, run.last) if not _read_block(file, run, number, buffer, scratch)]
    for number in wrong:
        twice(storage, run.name, lambda number=number: _reread(storage, run, number, buffer, scratch))  # type: ignore[misc]


def _reread(storage: Storage, run: Run, number: int, buffer: memoryview | None, scratch: memoryview | None) -> None:
    storage.forget(run.name)
    with storage.open(run.name) as file:
        if not _read_block(file, run, number, buffer, scratch):
            last = min((number + 1) * BLOCK, run.record.size) - 1
            raise DamagedError(
                f"{run.name}: the checksum of bytes {number * BLOCK} to {last} is wrong, in two reads. "
                "The file was changed after it was written."
            )


def _read_block(file: Readable, run: Run, number: int, buffer: memoryview | None, scratch: memoryview | None) -> bool:
    """Whether the block is as it was written."""
    start, stop = number * BLOCK, min((number + 1) * BLOCK, run.record.size)
    crc32 = 0
    if buffer is None:
        assert scratch is not None
        target = scratch[: stop - start]
    else:
        if start < HEADER:
            header = memoryview(bytearray(min(HEADER, stop)))
            if file.read_at(0, header) < len(header):
                return False
            crc32, start = zlib.crc32(header), HEADER
        target = buffer[run.at + start - HEADER : run.at + stop - HEADER]
    if file.read_at(start, target) < len(target):
        return False
    return zlib.crc32(target, crc32) == run.record.crc32[number]


def _read_whole(storage: Storage, name: str, record: FileRecord, into: memoryview) -> None:
    _check_size(storage, name, record)
    with storage.open(name) as file:
        file.read_at(0, into)
    if tuple(layout.checksums(into)) != record.crc32:
        raise DamagedError(f"{name}: its checksum is wrong, in two reads. The file was changed after it was written.")
