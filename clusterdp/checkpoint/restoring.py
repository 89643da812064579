"""Read one checkpoint with all ranks: each verifies what it reads, and all have it, or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from clusterdp.checkpoint.manifest import CheckpointInfo, Manifest, decode
from clusterdp.checkpoint.ranks import Ranks
from clusterdp.checkpoint.reader import Run, check_sizes, read_manifest, read_own, read_runs, runs_of, tensors_of
from clusterdp.checkpoint.tree import unflatten
from clusterdp.storage import Storage

# Up to so many ranks each read all bytes: they are few enough nodes for the storage, ranks of one node share its page
# cache, and that is faster than the network. More ranks read a share each and broadcast it, so that the storage gives
# every byte once, however many nodes there are.
READ_ALL_RANKS = 8


@dataclass
class Loaded:
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]  # views of one buffer that holds them all
    own: dict[str, Any] | None  # {"rng": ..., "objects": {name: state}} of this rank, if it was there at the save

    def state(self, name: str, *, copy: bool) -> Any:
        """What state_dict() of that object gave. Without `copy` its tensors are views: for who copies them anyway."""
        return unflatten(self.manifest.state[name], _Copies(self.tensors) if copy else self.tensors)


class _Copies(Mapping[str, torch.Tensor]):
    """Tensors of their own memory, made when asked for: one view that somebody keeps would keep the whole buffer."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self._tensors = tensors
        self._made: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._made:
            self._made[name] = self._tensors[name].clone()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def read(storage: Storage, info: CheckpointInfo, ranks: Ranks) -> Loaded:
    """Collective. Raises DamagedError on all ranks if bytes are wrong or missing, CheckpointError if unreadable."""
    text = ranks.settle(conclude=lambda _: read_manifest(storage, info).encode().decode("ascii"))
    failure, buffer, runs, own = None, torch.empty(0), [], None
    try:
        manifest = decode(text.encode("ascii"), info.name)
        runs = runs_of(manifest)
        mine = runs if ranks.size <= READ_ALL_RANKS else _share(runs, ranks.rank, ranks.size)
        check_sizes(storage, mine)  # first: no manifest makes us ask for memory that its files do not fill
        buffer = torch.empty(manifest.layout.total, dtype=torch.uint8)
        read_runs(storage, mine, buffer)
        if ranks.rank < info.world_size:
            own = read_own(storage, manifest, ranks.rank)
    except Exception as error:
        failure = error
    ranks.settle(failure)
    if ranks.size > READ_ALL_RANKS:
        _exchange(runs, buffer, ranks)
    return Loaded(manifest, tensors_of(manifest.layout, buffer), own)


def _share(runs: list[Run], rank: int, size: int) -> list[Run]:
    return runs[len(runs) * rank // size : len(runs) * (rank + 1) // size]


def _exchange(runs: list[Run], buffer: torch.Tensor, ranks: Ranks) -> None:
    """Every rank gives the others what it has read and verified. Runs follow each other in the buffer without a gap."""
    for source in range(ranks.size):
        share = _share(runs, source, ranks.size)
        if share:
            ranks.broadcast(buffer[share[0].span[0] : share[-1].span[1]], source)
