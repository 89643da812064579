"""Checks that the ranks still have the same state. DDP keeps state equal, but does not notice if ranks differ.

Each rank writes only its slice of the state. Other ranks also have this slice, and a save would not notice a
difference. Therefore each rank also computes checksums of the next rank's slice, tensor by tensor, from its own memory.
Rank 0 compares these checksums with those of the rank that wrote the slice, and commits only slices that are equal on
two ranks. Before a run stops, all ranks compare all tensors, because the next attempt gives every rank the saved
tensors.

Replicas that differ (a parameter that one rank has changed by itself, a bit that has flipped in a GPU's memory, an
optimizer state that was loaded on one rank only) fail the save.

With 1 GB on two ranks, checksums of the next rank's half take 45 ms of a core beside 65 ms for copying the own half.
Checksums of all tensors take 85 ms. A GPU computes the checksums of its own tensors, and only one number per tensor is
copied to the host."""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections.abc import Collection, Sequence

import torch

from clusterdp.checkpoint.errors import ReplicasDiffer
from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.checkpoint.format.layout import FlatLayout
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.state import stateful
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.checkpoint.state.tree import as_bytes, is_sharded, memory_of
from clusterdp.wording import some_of

_PIECE = 32 << 20  # number of bytes that a GPU sums at a time
_MIX = 0x1E3779B97F4A7C15  # odd


def neighbour(rank: int, world_size: int) -> int:
    return (rank + 1) % world_size


def of_neighbour(part: StatePart, rank: int, world_size: int) -> Sums:
    """Returns checksums of this rank's live tensors: one for each tensor's part in the next rank's slice."""
    start, stop = part.layout.span(neighbour(rank, world_size), world_size)
    return Sums(
        [
            as_bytes(part.tensors[entry.name])[max(start - entry.offset, 0) : stop - entry.offset]
            for entry in part.layout.overlapping(start, stop)
        ]
    )


def of_slice(layout: FlatLayout, rank: int, world_size: int, data: memoryview, on_gpu: Collection[str]) -> list[int]:
    """Returns the same checksums of `data`, the slice that `rank` has copied. on_gpu: names of tensors on GPUs."""
    start, stop = layout.span(rank, world_size)
    sums = []
    for entry in layout.overlapping(start, stop):
        piece = data[max(entry.offset, start) - start : min(entry.end, stop) - start]
        if entry.name in on_gpu:
            sums.append(_unsigned(int(gpu_sum(torch.frombuffer(piece, dtype=torch.uint8)))))
        else:
            sums.append(checksum(piece))
    return sums


class Sums:
    """Checksums of pieces of bytes. A GPU computes the checksums of its pieces after all queued work, while the
    training continues. seconds: the time that the checksums took, known after values()."""

    def __init__(self, pieces: Sequence[torch.Tensor]):
        began = time.perf_counter()
        self._sums = [0 if piece.is_cuda else checksum(memory_of(piece.cpu())) for piece in pieces]
        self.seconds = time.perf_counter() - began
        self._coming = [
            _Coming([place for place, piece in enumerate(pieces) if piece.device == device], pieces, device)
            for device in {piece.device for piece in pieces if piece.is_cuda}
        ]

    def values(self) -> list[int]:
        """Returns the checksums, and waits for the GPUs. Any thread may call values()."""
        for coming in self._coming:
            for place, value in zip(coming.places, coming.values(), strict=True):
                self._sums[place] = _unsigned(value)
            self.seconds += coming.seconds
        self._coming = []
        return self._sums


class _Coming:
    """Checksums that one GPU is computing."""

    def __init__(self, places: list[int], pieces: Sequence[torch.Tensor], device: torch.device):
        self.places, self._device, self.seconds = places, device, 0.0
        self._began, self._ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(device)
        self._began.record(stream)
        sums = torch.stack([gpu_sum(pieces[place]) for place in places])
        self._host = torch.empty(len(places), dtype=torch.int64, pin_memory=True)
        self._host.copy_(sums, non_blocking=True)
        self._ended.record(stream)

    def values(self) -> list[int]:
        with torch.cuda.device(self._device):  # without this, a new thread would open a context on GPU 0
            self._ended.synchronize()
            self.seconds = self._began.elapsed_time(self._ended) / 1000
        return [int(value) for value in self._host.tolist()]


def gpu_sum(data: torch.Tensor) -> torch.Tensor:
    """Returns a checksum of bytes (uint8, one dimension) that a GPU can compute in any order: int64, no dimensions, on
    the same device. The value is the same on every device.

    The checksum is the sum of all 64-bit words modulo 2**64, each mixed and then multiplied by its own odd number.
    Without the mixing, two changes of a topmost bit, such as the signs of two float64, would cancel each other. An even
    factor would lose a topmost bit. gpu_sum() allocates three times _PIECE bytes.
    """
    total = torch.zeros((), dtype=torch.int64, device=data.device)
    for start in range(0, data.numel(), _PIECE):
        words = _words(data[start : start + _PIECE])
        mixed = words * _MIX
        mixed ^= mixed >> 32
        first = start // 8
        mixed *= torch.arange(2 * first + 1, 2 * (first + words.numel()) + 1, 2, device=data.device)
        total += mixed.sum()
    return total


def _words(data: torch.Tensor) -> torch.Tensor:
    """Returns the bytes as int64, padded with zeros."""
    if data.numel() % 8 or data.data_ptr() % 8 or data.storage_offset() % 8:
        padded = torch.zeros(-(-data.numel() // 8) * 8, dtype=torch.uint8, device=data.device)
        padded[: data.numel()] = data
        data = padded
    return data.view(torch.int64)


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFFFFFFFFFF


def compare(sums: Sequence[tuple[list[int] | None, list[int] | None]], layout: FlatLayout) -> None:
    """Raises StateError with the names of tensors that differ. sums: for each rank, the checksums of (its own slice,
    the next rank's slice)."""
    size = len(sums)
    different: dict[str, list[int]] = {}
    for rank, (_, here) in enumerate(sums):
        beside = neighbour(rank, size)
        there = sums[beside][0]
        if here is None or there is None:
            return  # this save makes no comparison
        for entry, ours, theirs in zip(layout.overlapping(*layout.span(beside, size)), here, there, strict=True):
            if ours != theirs:
                different.setdefault(entry.name, []).append(rank)
    if different:
        raise _error(different, "beside the next")


def compare_all(part: StatePart, ranks: RankGroup) -> None:
    """Collective. Compares all tensors of all ranks, except sharded ones. Raises the same error as compare() if tensors
    differ."""
    names = [name for name, tensor in part.tensors.items() if not is_sharded(tensor)]
    sums, failure = tried(lambda: Sums([as_bytes(part.tensors[name]) for name in names]).values())
    digest = hashlib.blake2b(array("Q", sums or []), digest_size=8).digest()
    if not ranks.are_equal(digest if failure is None else secrets.token_bytes(8)):
        ranks.agree(failure, sums, lambda reports: _explain(names, reports))


def _explain(names: Sequence[str], reports: Sequence[Sequence[int]]) -> None:
    """Runs on rank 0."""
    first = reports[0]
    different = {
        name: [rank for rank, sums in enumerate(reports) if sums[i] != first[i]] for i, name in enumerate(names)
    }
    raise _error({name: ranks for name, ranks in different.items() if ranks}, "beside rank 0")


def _error(different: dict[str, list[int]], beside: str) -> ReplicasDiffer:
    """different: a mapping from a tensor's name to the ranks whose copy differs."""
    names = sorted(different)
    ranks = sorted({rank for found in different.values() for rank in found})
    return ReplicasDiffer(
        "state: the ranks are no longer the same, and only one of them could be saved: "
        f"{some_of(names)} (rank {some_of([*map(str, ranks)])} {beside}). "
        f"{stateful.remedy(names)}"
    )
