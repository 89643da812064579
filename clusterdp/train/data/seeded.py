"""SeededDataset: random augmentations that depend only on the sample and the epoch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from clusterdp.checkpoint.state.generators import generators_of
from clusterdp.train.argument_names import checked_class
from clusterdp.train.data.streams import mixed_seed, scratch_streams, seed_streams, seeded

Key = int | tuple[int, int]  # an index; or (place, index), for an order in which an index may occur more than once
COLLATION = 1  # gives the collate_fn a random stream that differs from the one of the batch's first sample


@checked_class
class SeededDataset(Dataset[Any]):
    """A map-style data set whose sample i draws the same random numbers in epoch e, in any process.

    The numbers do not depend on the number of workers and ranks, nor on a resume: before each sample Python's, numpy's
    and torch's global streams are seeded by (seed, epoch, index). In the training process the global streams are
    restored afterwards, so that dropout is not affected. In a worker nothing else uses the streams, which therefore are
    not restored. The generators that the data set keeps are seeded in the same way.

    A data set with its own __getitems__ makes a whole batch at once, and is seeded once per batch, by its first index.
    The seeding costs 10 to 20 µs per sample, and the same again per batch if there are no workers."""

    def __init__(self, dataset: Dataset[Any], seed: int = 0):
        self.dataset = dataset
        self.seed = seed
        # The epoch is in shared memory, so that persistent workers see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._at_once = _makes_batches(dataset)
        self._batch = 0  # the seed of the current batch
        self._own: dict[str, Any] = {}  # the data set's generators, in this process
        self._looked = -1  # the epoch in which they were looked for

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # the attribute is not set yet while this object is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_own": {}, "_looked": -1}

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, also in the wrapped data set if it has set_epoch(). Call this method before iter(loader)."""
        self._epoch.fill_(epoch)
        if callable(inner := getattr(self.dataset, "set_epoch", None)):
            inner(epoch)

    def __getitem__(self, key: Key) -> Any:
        with scratch_streams():
            return self._fetch(key, int(self._epoch))

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        """Returns the samples of a batch, for a DataLoader."""
        epoch = int(self._epoch)
        with scratch_streams():
            if self._at_once:
                return self._drawn(keys[0], epoch, lambda: self.dataset.__getitems__([_index(key) for key in keys]))  # type: ignore[attr-defined]
            samples = [self._fetch(key, epoch) for key in keys]
            self._batch = self._seed_of(keys[0], epoch)
            return samples

    def collation(self, collate_fn: Callable[[Any], Any] | type) -> Callable[[Any], Any]:
        """Returns a collate_fn that may draw random numbers (MixUp): the batch's first sample determines its seed."""
        return _SeededCollation(self, collate_fn)

    def _fetch(self, key: Key, epoch: int) -> Any:
        try:
            return self._drawn(key, epoch, lambda: self.dataset[_index(key)])
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"sample {_index(key)} of the data set, in epoch {epoch}")
            raise

    def _drawn(self, key: Key, epoch: int, fetch: Callable[[], Any]) -> Any:
        """Returns what `fetch` makes from the random numbers of this key."""
        self._batch = self._seed_of(key, epoch)
        looks, self._looked = self._looked != epoch, epoch
        if looks:
            self._own = generators_of(self.dataset)
        seed_streams(self._batch)
        with seeded(self._own, self._batch) if self._own else nullcontext():
            made = fetch()
        if looks and (own := generators_of(self.dataset)).keys() != self._own.keys():
            self._own = own  # the first sample has made a generator, and draws from it once more
            return self._drawn(key, epoch, fetch)
        return made

    def _seed_of(self, key: Key, epoch: int) -> int:
        return mixed_seed(self.seed, epoch, key[0] if isinstance(key, tuple) else key)


class _SeededCollation:
    """The seeded collate_fn. This is a class, because spawned workers must unpickle it, together with its data set."""

    def __init__(self, dataset: SeededDataset, collate_fn: Callable[[Any], Any]):
        self.dataset = dataset
        self.collate_fn = collate_fn
        self._own: dict[str, Any] = {}
        self._looked = -1

    def __call__(self, samples: Any) -> Any:
        with scratch_streams():
            seed_streams(seed := mixed_seed(self.dataset._batch, COLLATION))
            if self._looked != self.dataset._looked:  # once an epoch: looking through a tokenizer takes 3 ms
                self._looked, self._own = self.dataset._looked, generators_of(self.collate_fn)
            with seeded(self._own, seed):
                return self.collate_fn(samples)


def _index(key: Key) -> int:
    return key[1] if isinstance(key, tuple) else key


def _makes_batches(dataset: Any) -> bool:
    """Returns whether the data set fetches whole batches. A Subset's data set decides for the Subset."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
