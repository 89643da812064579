"""SeededDataset: random augmentations that depend on the sample and the epoch, and on nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from clusterdp.train.data.streams import mixed_seed, scratch_streams, seed_streams

Key = int | tuple[int, int]  # an index; or (place, index), of an order in which an index may occur more than once
COLLATION = 1  # a batch is put together from another stream than its first sample


class SeededDataset(Dataset[Any]):
    """A map-style data set whose sample i draws the same random numbers in epoch e, in any process.

    Whatever the number of workers and ranks, and wherever the run was resumed: before each sample Python's, numpy's and
    torch's global streams are seeded by (seed, epoch, index). In the training process they are put back afterwards, so
    that dropout and the like are not affected; a worker's streams have no other use. Generators of a transform's own
    are not seeded; let it seed them from torch.initial_seed().

    A data set with a __getitems__ of its own makes a whole batch at once, and is seeded once a batch, by its first
    index. The seeding costs 10 to 20 µs a sample, and as much a batch where there are no workers."""

    def __init__(self, dataset: Dataset[Any], seed: int = 0):
        self.dataset = dataset
        self.seed = seed
        # In shared memory, by which workers that persist see a new epoch.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._at_once = _makes_batches(dataset)
        self._batch = 0  # what the batch at hand is seeded with

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not there yet: it is being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def set_epoch(self, epoch: int) -> None:
        """Call it before the loader's iterator is made. It is passed on to a data set that has the method."""
        self._epoch.fill_(epoch)
        if callable(inner := getattr(self.dataset, "set_epoch", None)):
            inner(epoch)

    def __getitem__(self, key: Key) -> Any:
        with scratch_streams():
            return self._fetch(key, int(self._epoch))

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        """The batch for a DataLoader."""
        epoch = int(self._epoch)
        with scratch_streams():
            if self._at_once:
                self._seed(keys[0], epoch)
                return self.dataset.__getitems__([_index(key) for key in keys])  # type: ignore[attr-defined]
            samples = [self._fetch(key, epoch) for key in keys]
            self._batch = self._seed_of(keys[0], epoch)
            return samples

    def collation(self, collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Seeds a collate_fn that draws, such as MixUp's, by the batch's first sample."""
        return _SeededCollation(self, collate_fn)

    def _fetch(self, key: Key, epoch: int) -> Any:
        self._seed(key, epoch)
        try:
            return self.dataset[_index(key)]
        except Exception as error:
            if sys.version_info >= (3, 11):
                error.add_note(f"sample {_index(key)} of the data set, in epoch {epoch}")
            raise

    def _seed(self, key: Key, epoch: int) -> None:
        self._batch = self._seed_of(key, epoch)
        seed_streams(self._batch)

    def _seed_of(self, key: Key, epoch: int) -> int:
        return mixed_seed(self.seed, epoch, key[0] if isinstance(key, tuple) else key)


class _SeededCollation:
    """A class, for spawned workers unpickle it, together with its data set."""

    def __init__(self, dataset: SeededDataset, collate_fn: Callable[[Any], Any]):
        self.dataset = dataset
        self.collate_fn = collate_fn

    def __call__(self, samples: Any) -> Any:
        with scratch_streams():
            seed_streams(mixed_seed(self.dataset._batch, COLLATION))
            return self.collate_fn(samples)


def _index(key: Key) -> int:
    return key[1] if isinstance(key, tuple) else key


def _makes_batches(dataset: Any) -> bool:
    """Whether it fetches whole batches. A Subset always has the method, so its data set is asked."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    return callable(getattr(dataset, "__getitems__", None))
