"""Whether the ranks still have the same state: DDP keeps it equal, and nothing says so when it has not.

Each rank writes only its slice of the state, and nobody would ever read the others' copies of it. So at some saves each
rank also takes checksums of its neighbour's slice, tensor by tensor, from its own memory; rank 0 compares them with
those of the rank that wrote the slice. Replicas that differ (a parameter that one rank has changed by itself, a bit
that has flipped in a GPU's memory, an optimizer state that was loaded on one rank only) fail the save.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.checkpoint.checksum import checksum
from clusterdp.checkpoint.layout import Layout
from clusterdp.checkpoint.snapshot import Part
from clusterdp.checkpoint.tree import as_bytes, memory_of
from clusterdp.errors import StateError

SHOWN = 8  # names in an error


def neighbour(rank: int, world_size: int) -> int:
    return (rank + 1) % world_size


def of_neighbour(part: Part, rank: int, world_size: int) -> list[int]:
    """Of this rank's live tensors: a checksum for each that the next rank's slice touches, of what lies in there."""
    start, stop = part.layout.span(neighbour(rank, world_size), world_size)
    sums = []
    for entry in part.layout.overlapping(start, stop):
        data = as_bytes(part.tensors[entry.name])[max(start - entry.offset, 0) : stop - entry.offset]
        sums.append(checksum(memory_of(data.cpu())))
    return sums


def of_slice(layout: Layout, rank: int, world_size: int, data: memoryview) -> list[int]:
    """The same of the slice that `rank` has copied."""
    start, stop = layout.span(rank, world_size)
    entries = layout.overlapping(start, stop)
    return [checksum(data[max(entry.offset, start) - start : min(entry.end, stop) - start]) for entry in entries]


def compare(sums: Sequence[tuple[list[int] | None, list[int] | None]], layout: Layout) -> None:
    """Raises StateError with the names of the tensors. sums: of each rank those of its own slice, and of the next."""
    size = len(sums)
    different: dict[str, list[int]] = {}
    for rank, (_, here) in enumerate(sums):
        beside = neighbour(rank, size)
        there = sums[beside][0]
        if here is None or there is None:
            return  # not at this save
        for entry, ours, theirs in zip(layout.overlapping(*layout.span(beside, size)), here, there, strict=True):
            if ours != theirs:
                different.setdefault(entry.name, []).append(rank)
    if not different:
        return
    names = sorted(different)
    ranks = sorted({rank for found in different.values() for rank in found})
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise StateError(
        "state: the ranks are no longer the same, and only one of them could be saved: "
        f"{', '.join(names[:SHOWN])}{more} (rank {', '.join(map(str, ranks[:SHOWN]))} beside the next). "
        "Make it equal on all ranks, or give its object an attribute `per_rank = True`."
    )
