"""Verified reads: no byte leaves here that its checksum does not vouch for. Torch-free; nothing talks to other ranks.

What is read is a file against its FileRecord, block by block. A block that is wrong is read a second time, past caches,
before it is called damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from clusterdp.checkpoint.format import skeleton, strictjson, strides
from clusterdp.checkpoint.format.checksum import checksum, checksums
from clusterdp.checkpoint.format.layout import BLOCK, HEADER, Layout, local_name, rank_name
from clusterdp.checkpoint.format.manifest import (
    LIMIT,
    MALFORMED,
    CheckpointInfo,
    FileRecord,
    Manifest,
    decode,
    expected_files,
)
from clusterdp.checkpoint.format.read_targets import Nowhere, Target, Whole
from clusterdp.checkpoint.format.strides import Shape
from clusterdp.errors import DamagedError
from clusterdp.storage import Readable, Storage

T = TypeVar("T")
_RUN = 16  # blocks that a thread reads from one open file
_THREADS = 4


@dataclass(frozen=True)
class Run:
    """Consecutive blocks of one of our safetensors files, and where its data begins in the buffer to fill. The first
    `head` bytes of the file are verified, and not data."""

    name: str
    record: FileRecord
    first: int
    last: int
    at: int
    head: int = HEADER

    @property
    def span(self) -> tuple[int, int]:
        """The bytes of the buffer that these blocks fill."""
        start = max(self.first * BLOCK - self.head, 0)
        return self.at + start, self.at + min(self.last * BLOCK, self.record.size) - self.head

    def trimmed(self, start: int, stop: int) -> Run:
        """Without the blocks that have nothing of these bytes of the buffer."""
        first, last = (start - self.at + self.head) // BLOCK, -(-(stop - self.at + self.head) // BLOCK)
        return replace(self, first=max(self.first, first), last=min(self.last, last))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return min(self.last * BLOCK, self.record.size) - self.first * BLOCK


def read_manifest(storage: Storage, info: CheckpointInfo) -> Manifest:
    """Raises DamagedError if it is not what was written, in two reads."""

    def look() -> Manifest:
        if (size := storage.size(info.name)) > LIMIT:
            raise DamagedError(f"{info.name}: it has {size} bytes. No manifest is that long: it was overwritten.")
        return decode(storage.read(info.name), info.name)

    return twice(storage, info.name, look)


def runs_of(manifest: Manifest, blocks: int = _RUN) -> list[Run]:
    """All blocks of the shared state, in the order of their addresses (Manifest.bases), so many at a time."""
    info = manifest.info
    head = HEADER if manifest.chunks is None else 0  # a chunk's first byte is counted from its file's
    runs: list[Run] = []
    for at, (name, _) in zip(manifest.bases, expected_files(info), strict=True):
        runs += runs_of_file(f"{info.folder}/{name}", manifest.files[name], at, blocks, head)
    return runs


def runs_of_file(name: str, record: FileRecord, at: int = 0, blocks: int = _RUN, head: int = HEADER) -> Iterator[Run]:
    count = len(record.checksums)
    return (Run(name, record, first, min(first + blocks, count), at, head) for first in range(0, count, blocks))


def threads_for(runs: Sequence[Run]) -> int:
    return max(1, min(_THREADS, len(runs), os.cpu_count() or 1))


def read_runs(storage: Storage, runs: Sequence[Run], target: Target) -> None:
    """Verify the blocks, and leave their data there. Raises DamagedError, or OSError."""
    threads = threads_for(runs)
    if threads == 1:
        for run in runs:
            read_run(storage, run, target)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda run: read_run(storage, run, target), runs):
            pass  # the first error is raised here


def read_parts(storage: Storage, runs: Sequence[Run], parts: Sequence[tuple[int, memoryview]]) -> None:
    """Fill each part with the bytes that begin at its place in the buffer that the runs would fill: they alone are
    read, in whole blocks. The runs are in the order of their spans. Raises DamagedError, or OSError."""
    waiting = sorted(parts, key=lambda part: part[0], reverse=True)
    beside: list[tuple[int, memoryview]] = []
    work: list[tuple[Run, list[tuple[int, memoryview]]]] = []
    for run in runs:
        start, stop = run.span
        while waiting and waiting[-1][0] < stop:
            beside.append(waiting.pop())
        beside = [part for part in beside if part[0] + len(part[1]) > start]
        if beside:
            last = max(at + len(data) for at, data in beside)
            work.append((run.trimmed(max(start, min(at for at, _ in beside)), min(stop, last)), [*beside]))
    check_sizes(storage, [run for run, _ in work])

    def read(run: Run, wanted: list[tuple[int, memoryview]]) -> None:
        data, (start, stop) = data_of(storage, run), run.span
        for at, into in wanted:
            first, last = max(at, start), min(at + len(into), stop)
            into[first - at : last - at] = data[first - start : last - start]

    with ThreadPoolExecutor(threads_for(runs), thread_name_prefix="verify") as pool:
        for _ in pool.map(lambda one: read(*one), work):
            pass  # the first error is raised here


def read_run(storage: Storage, run: Run, target: Target) -> None:
    with storage.open(run.name, run.first * BLOCK, run.first * BLOCK + run.size) as file:
        wrong = [number for number in range(run.first, run.last) if not _read_block(file, run, number, target)]
    for number in wrong:
        twice(storage, run.name, lambda number=number: _reread(storage, run, number, target))  # type: ignore[misc]


def data_of(storage: Storage, run: Run) -> memoryview:
    """The data of these blocks alone."""
    start, stop = run.span
    buffer = memoryview(bytearray(stop - start))
    read_run(storage, run, Whole(buffer, start))
    return buffer


def read_file(storage: Storage, name: str, record: FileRecord) -> bytearray:
    """A small file of any kind."""
    return twice(storage, name, lambda: _read_whole(storage, name, record))


def check_sizes(storage: Storage, runs: Sequence[Run]) -> None:
    """Raises DamagedError if a file of the runs is not there, or not as long as it was."""
    for name, record in {run.name: run.record for run in runs}.items():
        twice(storage, name, lambda name=name, record=record: _check_size(storage, name, record))  # type: ignore[misc]


def verify(storage: Storage, name: str, record: FileRecord) -> None:
    """A file of any kind against its record."""
    runs = list(runs_of_file(name, record))
    check_sizes(storage, runs)
    read_runs(storage, runs, Nowhere())


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


def _reread(storage: Storage, run: Run, number: int, target: Target) -> None:
    storage.forget(run.name)
    start, stop = number * BLOCK, min((number + 1) * BLOCK, run.record.size)
    with storage.open(run.name, start, stop) as file:
        if not _read_block(file, run, number, target):
            raise DamagedError(
                f"{run.name}: the checksum of bytes {start} to {stop - 1} is wrong, in two reads. "
                "The file was changed after it was written."
            )


def _read_block(file: Readable, run: Run, number: int, target: Target) -> bool:
    """Whether the block is as it was written."""
    start, stop = number * BLOCK, min((number + 1) * BLOCK, run.record.size)
    parts: tuple[memoryview, ...] = ()
    if start < run.head:
        parts = (memoryview(bytearray(min(run.head, stop) - start)),)
        if file.read_at(start, parts[0]) < len(parts[0]):
            return False
        start += len(parts[0])
    first, last = run.at + start - run.head, run.at + stop - run.head
    if first < last:
        parts = (*parts, target.room(first, last))
        if file.read_at(start, parts[-1]) < len(parts[-1]):
            return False
    if checksum(*parts) != run.record.checksums[number]:
        return False
    if first < last:
        target.accept(first, last)
    return True


def _read_whole(storage: Storage, name: str, record: FileRecord) -> bytearray:
    _check_size(storage, name, record)  # first: no manifest makes us ask for memory that its files do not fill
    data = bytearray(record.size)
    with storage.open(name) as file:
        file.read_at(0, memoryview(data))
    if checksums(memoryview(data)) != record.checksums:
        raise DamagedError(f"{name}: its checksum is wrong, in two reads. The file was changed after it was written.")
    return data


def read_rank_file(
    storage: Storage, manifest: Manifest, rank: int, blocks: int = _RUN
) -> tuple[Any, Layout, list[Run], dict[str, Shape]]:
    """What belonged to this rank alone: its skeleton, where its tensors are in their flat buffer, what to read to fill
    that, and the strides of those that did not lie row by row. Raises DamagedError, or OSError."""
    info = manifest.info
    name, local = f"{info.folder}/{rank_name(info.data, rank)}", local_name(info.data, rank)
    data = read_file(storage, name, manifest.files[rank_name(info.data, rank)])
    record = manifest.files.get(local)
    runs = list(runs_of_file(f"{info.folder}/{local}", record, 0, blocks)) if record else []
    try:
        content = strictjson.loads(data)
        plan = Layout.from_json(content["index"])
        if plan.total != (record.size - HEADER if record else 0):
            raise ValueError(f"its tensors have {plan.total} bytes, and not those of {local}")
        skeleton.check(content["state"], {entry.name for entry in plan.entries})
        noted = strides.from_json(content.get("strides", {}), plan.shapes)
    except MALFORMED as error:
        raise DamagedError(f"{name}: {error}. This was not written by a save; use another checkpoint.") from error
    check_sizes(storage, runs)
    return content["state"], plan, runs, noted
