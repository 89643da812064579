"""GlobalBatch: the samples of a step of the optimizer, as numbered micro-batches that the ranks share.

    64 samples in micro-batches of 8, on 3 ranks    0 1 2 | 3 4 5 | 6 7
    the epoch's last step, of 20 samples            0 | 1 | 2                the last one has 4 samples

The numbers of a step and their samples are the same on any number of ranks; only the shares are others. A rank without
a micro-batch of its own repeats the last one with weight 0, because all ranks exchange gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler

from clusterdp.errors import ConfigError
from clusterdp.train.data.loader_identity import batch_size_of
from clusterdp.train.data.resumable_loader import our_sampler
from clusterdp.wording import shares_of

KEY = "train.global_batch_size"


class Pass(NamedTuple):
    """A forward and backward pass of this rank. number: of the micro-batch in its step. samples: of the micro-batch.
    weighs: False if another pass of the step has the same micro-batch."""

    number: int
    samples: int
    weighs: bool


@dataclass(frozen=True)
class GlobalBatch:
    """samples: of a whole step. size: samples of a whole micro-batch. drop_last: whether an epoch has whole steps
    only."""

    samples: int
    size: int
    rank: int
    ranks: int
    drop_last: bool = False

    @classmethod
    def of(cls, samples: int, loader: Any, rank: int, ranks: int) -> GlobalBatch:
        """Raises ConfigError on all ranks if the loader's samples cannot be shared in this way."""
        size, sampler = batch_size_of(loader), our_sampler(loader)
        if sampler is None or size is None or type(getattr(loader, "batch_sampler", None)) is not BatchSampler:
            raise ConfigError(
                f"{KEY}: a {type(loader).__name__} deals out no micro-batches. Use job.loader(data, batch_size) of a "
                "data set with samples by number, or leave it out."
            )
        if samples % size:
            near = " or ".join(str(each) for each in (samples // size * size, -(-samples // size) * size) if each)
            raise ConfigError(
                f"{KEY}: {samples} samples are not micro-batches of {size}, the loader's batch_size. Use {near}, or a "
                f"batch_size that divides {samples}."
            )
        if samples // size < ranks:
            raise ConfigError(
                f"{KEY}: {samples // size} micro-batches of {size} are too few for {ranks} ranks. Use a batch_size of "
                f"{samples // ranks or 1} or less, or at most {samples // size} ranks."
            )
        drop_last = sampler.drop_last or loader.drop_last
        if drop_last and sampler.size < samples:
            raise ConfigError(f"{KEY}: {sampler.size} samples are not a step of {samples}. Use drop_last=False.")
        return cls(samples, size, rank, ranks, drop_last)

    @property
    def count(self) -> int:
        """The number of micro-batches in a whole step."""
        return self.samples // self.size

    @property
    def most(self) -> int:
        """The largest number of a rank's micro-batches in a step."""
        return -(-self.count // self.ranks)

    def share(self, count: int, rank: int | None = None) -> range:
        """Returns the numbers of a rank's micro-batches, of `count` in a step; by default this rank's."""
        rank = self.rank if rank is None else rank
        least, more = divmod(count, self.ranks)
        begin = rank * least + min(rank, more)
        return range(begin, begin + least + (rank < more))

    def passes(self, samples: int, *, even: bool) -> list[Pass]:
        """Returns this rank's passes in a step of so many samples. even: whether all ranks make equally many passes,
        for models with collectives in their forward pass."""
        count = -(-samples // self.size)
        own = self.share(count) or range(count - 1, count)
        surplus = max(-(-count // self.ranks) - len(own), 0) if even else 0
        weighs = len(self.share(count)) > 0
        sizes = [min(self.size, samples - number * self.size) for number in own]
        made = [Pass(number, size, weighs) for number, size in zip(own, sizes, strict=True)]
        return made + [made[-1]._replace(weighs=False)] * surplus

    def used(self, left: int) -> int:
        """Returns how many of the last `left` samples of an epoch are trained on."""
        return left - left % self.samples if self.drop_last else left

    def steps(self, left: int) -> int:
        """Returns the number of steps in the last `left` samples of an epoch."""
        return -(-self.used(left) // self.samples)

    def places(self, left: int) -> torch.Tensor:
        """Returns the places, in the last `left` samples of an epoch, of all samples that this rank reads."""
        share = self.share(self.count)
        steps, rest = divmod(self.used(left), self.samples)
        begins = torch.arange(steps)[:, None] * self.samples
        places = (begins + torch.arange(share.start * self.size, share.stop * self.size)).flatten()
        if not rest:
            return places
        last, begin = self.passes(rest, even=False), steps * self.samples
        end = begin + last[-1].number * self.size + last[-1].samples
        return torch.cat([places, torch.arange(begin + last[0].number * self.size, end)])

    def weighs(self, size: int) -> bool:
        """Returns whether a mean over a micro-batch has another weight than 1 in some step of an epoch of so many
        samples."""
        return self.count != self.ranks or self.used(size) % self.samples > 0

    def __str__(self) -> str:
        on = f", {shares_of(self.count, self.ranks)} on each of {self.ranks} ranks" if self.ranks > 1 else ""
        return f"step = {self.samples} samples: {self.count} micro-batches of {self.size}{on}"
