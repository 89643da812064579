"""NodeFile: the layout of the file into which the ranks of a node write. Torch-free.

    header          of safetensors: the rest are U8 tensors
    own-r0003       the state of rank 3 alone: JSON, filled with spaces, and then the local safetensors file
    ...
    slice-r0003     its bytes of the flat buffer, or its safetensors file with pieces
    ...

No rank asks another one for sizes. Slices of the flat buffer follow from its length; all else has the room that the
ranks needed in the save before. A part that does not fit is a file by itself, as in formats 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.checkpoint.format.chunks import header
from clusterdp.checkpoint.format.layout import HEADER, node_name

MOST_OWN = 1 << 20  # bytes of the state of one rank alone that the file of its node may have


@dataclass(frozen=True)
class Room:
    """The room of the ranks in the files of their nodes."""

    own: int = 8 * HEADER  # bytes for the state of each rank alone; the default is that of a first save
    pieces: tuple[int, ...] = ()  # bytes of each rank's pieces, if the state is sharded

    @classmethod
    def of(cls, needs: Sequence[tuple[int, int]]) -> Room:
        """Returns the room for the next save. needs: what each rank needed in this save, of its own and for pieces."""
        most = max(1, *(own for own, _ in needs)) * 9 // 8  # numbers in the JSON may become longer
        pieces = tuple(of_rank for _, of_rank in needs)
        return cls(-(-most // HEADER) * HEADER, pieces if any(pieces) else ())


@dataclass(frozen=True)
class NodeFile:
    name: str
    node: int
    head: bytes
    own: Mapping[int, int]  # rank -> the first byte of the room for its own state
    slices: Mapping[int, int]  # rank -> the first byte of its slice
    total: int  # bytes

    @classmethod
    def of(cls, token: str, node: int, slices: Mapping[int, int], room: int, note: Mapping[str, str]) -> NodeFile:
        """slices: rank -> the bytes of its slice. room: bytes for the state of each rank alone."""
        sizes = {f"own-r{rank:04d}": room for rank in slices}
        sizes |= {f"slice-r{rank:04d}": size for rank, size in slices.items()}
        head, starts = header({name: ("uint8", (size,)) for name, size in sizes.items()}, note)
        return cls(
            node_name(token, node),
            node,
            head,
            {rank: starts[f"own-r{rank:04d}"] for rank in slices},
            {rank: starts[f"slice-r{rank:04d}"] for rank in slices},
            len(head) + sum(sizes.values()),
        )
