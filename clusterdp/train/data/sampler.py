"""ResumableSampler: the samples of this rank, their order, and the training's position in that order."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, Sampler

from clusterdp.checkpoint.state.generators import generators_of
from clusterdp.errors import StateError
from clusterdp.train.argument_names import checked
from clusterdp.train.data.streams import mixed_seed, scratch_streams, seed_streams, seeded

if TYPE_CHECKING:
    from clusterdp.train.data.global_batch import GlobalBatch
    from clusterdp.train.ranks.group import Group

CHUNK = 65_536  # indices that become Python ints at a time: all of a billion at once would take 36 GB


class ResumableSampler(Sampler[Any]):
    """Gives the same indices as torch's DistributedSampler, and can also begin in the middle of an epoch. The position
    is global: all ranks together have trained on the first `consumed` samples of the epoch's order. Therefore a run may
    resume with another number of ranks, which divide the rest among themselves. The training loop reports the finished
    samples (`advance`), not the DataLoader, whose workers are some batches ahead.

    The cost of a resume does not grow with `consumed`: the order is drawn again, as at the start of any epoch
    (O(size)), and read from the position on.
    """

    @checked
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
        """drop_last: whether an uneven end is dropped; if not, samples from the order's start fill it, as in torch."""
        self.size = dataset if isinstance(dataset, int) else len(dataset)
        grouped = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if grouped else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if grouped else 1
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank: {self.rank} is not in 0..{self.world_size - 1}. Pass the rank among world_size.")
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self.consumed = 0
        self.global_batch: GlobalBatch | None = None  # the steps in which the ranks share the samples
        self.numbered = False  # yield (place, index), for an order in which an index may come twice (SeededDataset)
        self._orders: Sampler[int] | None = None  # another sampler, which draws the order
        self._drawn: torch.Tensor | None = None  # the order of this epoch by the other sampler, which may change
        self._mark: int | None = None  # a checksum of that order

    @classmethod
    def over(cls, sampler: Sampler[int], **options: Any) -> ResumableSampler:
        """Returns this rank's share of the order that another sampler draws, such as torch's WeightedRandomSampler.

        This sampler must not divide samples among ranks. In each epoch, every rank iterates once over the whole
        sampler, with the global streams and the sampler's own generators seeded by (seed, epoch): all ranks and all
        attempts get the same order, if the sampler draws by nothing else.
        """
        if isinstance(sampler, DistributedSampler | ResumableSampler):
            raise ValueError(
                f"sampler: a {type(sampler).__name__} has divided its samples among the ranks already. "
                "Pass one over all samples, such as WeightedRandomSampler."
            )
        ours = cls(len(sampler), **options)  # type: ignore[arg-type]
        ours._orders = sampler
        return ours

    @property
    def total(self) -> int:
        """Samples that all ranks together see in this epoch: `size`, padded or cut to a multiple of the ranks.

        After a resume in the middle of the epoch, only the rest of the epoch is padded or cut. With a global batch,
        nothing is padded, and the epoch is cut to whole steps.
        """
        left = max(0, self.size - self.consumed)
        if self.global_batch is not None:
            return self.consumed + self.global_batch.used(left)
        over = left % self.world_size
        if over == 0 or self.consumed >= self.size:
            return max(self.size, self.consumed)
        return self.consumed + left - over if self.drop_last else self.consumed + left + self.world_size - over

    def __len__(self) -> int:
        """Returns the number of this rank's samples in a whole epoch, for this number of ranks, at any position."""
        return self.size // self.world_size if self.drop_last else -(-self.size // self.world_size)

    @property
    def left(self) -> int:
        """The number of this rank's samples from the position to the end of the epoch."""
        return len(self._places())

    def _places(self) -> range | torch.Tensor:
        """Returns where this rank's samples are in the epoch's order, from the position on."""
        if self.global_batch is not None:
            return self.consumed + self.global_batch.places(max(0, self.size - self.consumed))
        return range(self.consumed + self.rank, self.total, self.world_size)

    def __iter__(self) -> Iterator[Any]:
        places = self._places()
        share = self.share()
        for chunk in range(0, len(share), CHUNK):
            indices = share[chunk : chunk + CHUNK].tolist()
            yield from zip(map(int, places[chunk : chunk + CHUNK]), indices, strict=True) if self.numbered else indices

    def share(self) -> torch.Tensor:
        """Returns this rank's indices from the position to the end of the epoch, all at once."""
        order = self._order()
        if self.global_batch is not None:
            return order[self._places()]
        if self.total > self.size:  # samples from the start of the order are the padding
            order = torch.cat([order, order[torch.arange(self.size, self.total) % self.size]])
        return order[self.consumed + self.rank : self.total : self.world_size]

    def _order(self) -> torch.Tensor:
        if self._orders is not None:
            if self._drawn is None:
                self._drawn = self._order_of(self._orders)
            return self._drawn
        if not self.shuffle:
            return torch.arange(self.size)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(self.size, generator=generator)

    def _order_of(self, sampler: Any) -> torch.Tensor:
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(self.epoch)
        seed = mixed_seed(self.seed, self.epoch)
        with scratch_streams(), seeded(generators_of(sampler), seed):
            seed_streams(seed)
            order = torch.tensor(list(sampler), dtype=torch.int64)
        if len(order) != self.size:
            raise ValueError(
                f"sampler: {type(sampler).__name__} gave {len(order)} samples, and its len() is {self.size}. "
                "Make them equal; the epoch's end is counted by it."
            )
        return order

    def samples(self, consumed: int, count: int) -> list[int]:
        """Returns at most the next `count` indices of this rank, after `consumed` samples of the epoch. With a global
        batch, those of the next samples."""
        if self.global_batch is not None:
            return self._order()[consumed : consumed + count].tolist()
        places = consumed + self.rank + self.world_size * torch.arange(count)
        return list(map(int, self._order()[places[places < self.total] % self.size]))

    def advance(self, samples: int) -> None:
        """Counts `samples` on which each rank has trained; with a global batch, a step."""
        done = samples * self.world_size if self.global_batch is None else self.global_batch.samples
        self.consumed = min(self.consumed + done, self.total)

    def set_epoch(self, epoch: int) -> None:
        """Moves the position to the start of an epoch. If this epoch is already the current one, the position stays."""
        if epoch != self.epoch:
            self.epoch, self.consumed, self._drawn = epoch, 0, None

    def state_dict(self) -> dict[str, Any]:
        place = {"epoch": self.epoch, "consumed": self.consumed, "size": self.size, "seed": self.seed}
        return {**place, "mark": self._mark} if self._orders is not None else place

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises StateError if the data set has another size, because the position would be meaningless."""
        if state["size"] != self.size:
            raise StateError(
                f"sampler: the checkpoint counts {state['size']} samples, this data set has {self.size}. "
                "Resume with the same data, or start a new run."
            )
        self.epoch, self.consumed, self.seed = state["epoch"], state["consumed"], state["seed"]
        self._drawn, self._mark = None, state.get("mark")


def draw_order(sampler: ResumableSampler, group: Group, *, begun: bool) -> list[tuple[bool, str]]:
    """Draws the epoch's order, if another sampler does so. Returns what is wrong with it, after whether a resume is
    exact nevertheless. Collective. begun: whether the position is after the epoch's start."""
    if sampler._orders is None:
        return []
    if not begun:
        sampler._drawn = sampler._mark = None
    was, mark = sampler._mark, zlib.crc32(sampler._order().numpy().data)
    what, found = f"its {type(sampler._orders).__name__} draws another order", list[tuple[bool, str]]()
    again = "samples may come twice or not at all. Let it draw from its generator or the global random numbers, by "
    if was not in (None, mark):
        of = f"{what} of epoch {sampler.epoch} than before: what comes is not exact, and "
        found += [(False, f"{of}{again}weights that are in the state, and that change between two epochs only.")]
    most, least = group.agree(mark, -mark)
    if most != -least:
        found += [(True, f"{what} on each rank: {again}weights that are equal on all ranks.")]
    sampler._mark = mark if most == -least else None
    return found
