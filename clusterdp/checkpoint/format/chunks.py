"""The places of the pieces of sharded tensors. Torch-free.

FSDP2 gives every rank a part of each tensor, a box of indices, and torch.distributed.checkpoint decides which rank
writes which box. Each box is a tensor in the rank's safetensors file, whose name has the index ranges:
`model/weight[0:64,0:32]`. The manifest has the place of each box:

    "chunks": {tensor: [[rank, first byte in that rank's file, offsets, sizes], ...]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from clusterdp.checkpoint.format.layout import HEADER, ITEM_SIZES, SAFETENSORS, FlatLayout

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor. It lies in one rank's file in row-major order."""

    rank: int
    start: int  # position of the first byte in the rank's file
    offsets: Shape
    sizes: Shape


Chunks = Mapping[str, tuple[Chunk, ...]]


def to_json(chunks: Chunks) -> dict[str, list[list[object]]]:
    return {
        name: [[c.rank, c.start, list(c.offsets), list(c.sizes)] for c in found]
        for name, found in sorted(chunks.items())
    }


def from_json(data: Any, plan: FlatLayout, sizes: Sequence[int]) -> Chunks:
    """Returns the checked chunks. Raises ValueError unless they hold each byte of these tensors exactly once, in files
    of these sizes (by rank)."""
    shapes = {entry.name: (entry.shape, entry.dtype) for entry in plan.entries}
    if not isinstance(data, dict) or data.keys() != shapes.keys():
        raise ValueError("its chunks are not those of the tensors in its index")
    chunks: dict[str, tuple[Chunk, ...]] = {}
    used: list[tuple[int, int, int]] = []
    for name, (shape, dtype) in shapes.items():
        found = tuple(_chunk(item, name, shape) for item in data[name])
        if sum(math.prod(c.sizes) for c in found) != math.prod(shape) or _overlap(found):
            raise ValueError(f"the chunks of {name} do not make one tensor of shape {list(shape)}")
        for c in found:
            stop = c.start + math.prod(c.sizes) * ITEM_SIZES[dtype]
            if c.rank >= len(sizes) or stop > sizes[c.rank]:
                raise ValueError(f"a chunk of {name} lies outside the file of rank {c.rank}")
            used.append((c.rank, c.start, stop))
        chunks[name] = found
    used.sort()
    for (rank, _, stop), (other, start, _) in pairwise(used):
        if rank == other and start < stop:
            raise ValueError(f"two chunks lie on byte {start} of the file of rank {rank}")
    return chunks


def _chunk(item: Any, name: str, shape: Shape) -> Chunk:
    rank, start, offsets, sizes = item
    numbers = [rank, start, *offsets, *sizes]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"a chunk of {name} is not [rank, start, offsets, sizes]: {item!r:.200}")
    if not len(offsets) == len(sizes) == len(shape) or not all(
        size > 0 and offset + size <= whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)
    ):
        raise ValueError(f"a chunk of {name} is empty or reaches out of its shape {list(shape)}: {item!r:.200}")
    return Chunk(rank, start, tuple(offsets), tuple(sizes))


def _overlap(found: Sequence[Chunk]) -> bool:
    """Returns whether two of the boxes overlap. Compares boxes along the dimension with the most cuts, where few boxes
    lie side by side."""
    if len(found) < 2:
        return False
    dims = range(len(found[0].offsets))
    sweep = max(dims, key=lambda d: len({c.offsets[d] for c in found}), default=None)
    if sweep is None:
        return True  # a scalar cannot be in two chunks without overlap
    beside: list[Chunk] = []
    for chunk in sorted(found, key=lambda c: c.offsets[sweep]):
        beside = [c for c in beside if c.offsets[sweep] + c.sizes[sweep] > chunk.offsets[sweep]]
        for other in beside:
            if all(
                other.offsets[d] < chunk.offsets[d] + chunk.sizes[d]
                and chunk.offsets[d] < other.offsets[d] + other.sizes[d]
                for d in dims
            ):
                return True
        beside.append(chunk)
    return False


def name_of(tensor: str, offsets: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> str:
    """Returns a chunk's name in its file. A tensor that is one chunk keeps the tensor's name."""
    if tuple(sizes) == tuple(shape):
        return tensor
    box = ",".join(f"{offset}:{offset + size}" for offset, size in zip(offsets, sizes, strict=True))
    return f"{tensor}[{box}]"


def header(
    pieces: Mapping[str, tuple[str, Shape]], note: Mapping[str, str], room: int = HEADER
) -> tuple[bytes, dict[str, int]]:
    """Returns the header of a safetensors file with these pieces, given as name -> (dtype, shape), and the position of
    each piece's first byte. The length of the header is a multiple of `room`. The format allows no gaps between pieces.
    Pieces with the widest elements come first, which aligns all pieces.
    """
    text: dict[str, object] = {"__metadata__": dict(note)}
    starts: dict[str, int] = {}
    end = 0
    for name in sorted(pieces, key=lambda name: (-ITEM_SIZES[pieces[name][0]], name)):
        dtype, shape = pieces[name]
        nbytes = math.prod(shape) * ITEM_SIZES[dtype]
        known = dtype in SAFETENSORS
        text[name] = {
            "dtype": SAFETENSORS[dtype] if known else "U8",
            "shape": list(shape) if known else [nbytes],
            "data_offsets": [end, end + nbytes],
        }
        starts[name] = end
        end += nbytes
    data = json.dumps(text, separators=(",", ":")).encode()
    size = -(-(8 + len(data)) // room) * room - 8
    head = size.to_bytes(8, "little") + data.ljust(size)
    return head, {name: len(head) + start for name, start in starts.items()}
