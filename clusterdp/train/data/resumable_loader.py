"""ResumableLoader: a DataLoader over a ResumableSampler. Its length is the whole epoch's, also after a resume.

for i, batch in enumerate(loader, loader.done):     # i + 1 == len(loader) in the last step, after a resume too
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from clusterdp.train.data.sampler import ResumableSampler


class ResumableLoader(DataLoader[Any]):
    """left: number of unfinished batches of the epoch, if the present number of ranks divides the rest. done: number of
    all other batches of the epoch."""

    @property
    def left(self) -> int:
        left = batches_left(self)
        return len(self) if left is None else left

    @property
    def done(self) -> int:
        return len(self) - self.left


def our_sampler(loader: Any) -> ResumableSampler | None:
    """Returns the ResumableSampler from which a loader takes its indices; None if the loader has another sampler."""
    for holder in (loader, getattr(loader, "batch_sampler", None)):
        if isinstance(sampler := getattr(holder, "sampler", None), ResumableSampler):
            return sampler
    return None


def batches_left(loader: Any) -> int | None:
    """Returns the number of batches from a ResumableSampler's position to the end of the epoch; None without such a
    sampler, or if a custom batch sampler makes the batches."""
    sampler, batches = our_sampler(loader), getattr(loader, "batch_sampler", None)
    if sampler is None or type(batches) not in (BatchSampler, type(None)):
        return None
    size = (loader if batches is None else batches).batch_size or 1
    return sampler.left // size if loader.drop_last else -(-sampler.left // size)
