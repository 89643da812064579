"""ResumableSampler: which samples this rank sees, in which order, and where in that order training stands."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from clusterdp.errors import StateError

CHUNK = 65_536  # indices become Python ints this many at a time: all of a billion at once would take 36 GB


class ResumableSampler(Sampler[int]):
    """torch's DistributedSampler, index for index, that can also begin in the middle of an epoch.

    The position is global: `consumed` samples of the epoch's order have been trained on by all ranks together. So a run
    may go on with another number of ranks, which deal out what is left among themselves. Who trains reports what is
    done (`advance`), not the DataLoader, whose workers are some batches ahead.
    """

    def __init__(
        self,
        dataset: Sized | int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ):
        """drop_last: an uneven end is dropped; else it is padded from the start of the order, as torch does."""
        self.size = dataset if isinstance(dataset, int) else len(dataset)
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank: {self.rank} is not in 0..{self.world_size - 1}. Pass the rank among world_size.")
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.consumed = 0

    @property
    def total(self) -> int:
        """Samples that all ranks together see in this epoch: `size`, padded or cut to a multiple of the ranks.

        Counted from where this number of ranks took over, if that was in the middle.
        """
        left = max(0, self.size - self.consumed)
        over = left % self.world_size
        if over == 0 or self.consumed >= self.size:
            return max(self.size, self.consumed)
        return self.consumed + left - over if self.drop_last else self.consumed + left + self.world_size - over

    def __len__(self) -> int:
        """This rank's samples from here to the end of the epoch."""
        return (self.total - self.consumed) // self.world_size

    def __iter__(self) -> Iterator[int]:
        order, begin, count = self._order(), self.consumed + self.rank, len(self)
        for chunk in range(0, count, CHUNK):
            places = begin + self.world_size * torch.arange(chunk, min(chunk + CHUNK, count))
            yield from order[places % self.size].tolist()  # beyond the end: padding, from the start

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.size, generator=generator)

    def advance(self, samples: int) -> None:
        """This rank, and so each, has trained on so many more samples."""
        self.consumed = min(self.consumed + samples * self.world_size, self.total)

    def set_epoch(self, epoch: int) -> None:
        """To the start of an epoch; staying in the same one keeps the place."""
        if epoch != self.epoch:
            self.epoch, self.consumed = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "consumed": self.consumed, "size": self.size, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises StateError if the data set has another size: the position would mean nothing there."""
        if state["size"] != self.size:
            raise StateError(
                f"sampler: the checkpoint counts {state['size']} samples, this data set has {self.size}. "
                "Resume with the same data, or start a new run."
            )
        self.epoch, self.consumed, self.seed = state["epoch"], state["consumed"], state["seed"]
