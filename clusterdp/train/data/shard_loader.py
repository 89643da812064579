"""ShardLoader: batches of Shards for one rank, from its own files and from the saved position on.

Each worker reads files of its own, and the workers take turns. Each batch comes with the position after it. So the
state_dict() is that of the batches handed out, not of those that workers have read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from clusterdp.train.data.shards import START, Place, Shards

OVER: Place = (-1, 0)  # a stream that has ended
END: Any = object()


class ShardLoader:
    """options: DataLoader's. The order is that of (seed, epoch, rank, num_workers); an epoch that began with
    another number of workers ends with that number."""

    def __init__(
        self,
        dataset: Shards,
        batch_size: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        **options: Any,
    ):
        self.dataset, self.batch_size, self.num_workers = dataset, batch_size, num_workers
        self.collate_fn = collate_fn
        self.epoch = 0
        self._share = {"rank": rank, "world_size": world_size, "seed": seed}
        self._options = options
        self._places: list[Place] = []  # of each stream; none: at the start of the epoch
        self._turn = 0  # the stream that is asked next
        self._done = 0  # batches of this epoch
        dataset.dealt(rank, world_size, seed, 0)  # says what is wrong with them, if anything is

    def with_workers(self, workers: int) -> ShardLoader:
        """Another one, at the start of an epoch."""
        options: dict[str, Any] = {**self._share, **self._options, "collate_fn": self.collate_fn}
        return ShardLoader(self.dataset, self.batch_size, num_workers=workers, **options)

    def __len__(self) -> int:
        if self.dataset.batches is None:
            raise TypeError("shards have no length, unless batches= gives it")
        return self.dataset.batches

    @property
    def done(self) -> int:
        """Batches of this epoch that were handed out."""
        return self._done

    @property
    def left(self) -> int:
        """The others. TypeError where they have no length."""
        return len(self) - self._done

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self._places, self._turn, self._done = epoch, [], 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "places": list(map(list, self._places)), "turn": self._turn, "done": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self._turn, self._done = state["epoch"], state["turn"], state["done"]
        self._places = [(file, done) for file, done in state["places"]]

    def __iter__(self) -> Iterator[Any]:
        """The workers are there when this returns."""
        files = self.dataset.dealt(**self._share, epoch=self.epoch)
        if not self._places:
            self._places = [START] * max(1, min(self.num_workers, len(files)))
        count = len(self._places)
        streams = [self._stream(files[n::count], place) for n, place in enumerate(self._places)]
        return self._in_turn(streams)

    def _stream(self, files: list[int], place: Place) -> Iterator[Any]:
        if place == OVER:
            return iter(())
        stream = _Stream(self.dataset, files, self._share["seed"], self.epoch, place)
        # Its own generator: iter() would otherwise draw from the stream that dropout uses.
        options = {**self._options, "generator": torch.Generator(), "num_workers": min(1, self.num_workers)}
        return iter(DataLoader(stream, self.batch_size, collate_fn=_Collation(self.collate_fn), **options))

    def _in_turn(self, streams: list[Iterator[Any]]) -> Iterator[Any]:
        places = self._places
        most = self.dataset.batches
        while any(place != OVER for place in places) and (most is None or self._done < most):
            turn, self._turn = self._turn, (self._turn + 1) % len(streams)
            found = next(streams[turn], END)
            if found is END:
                places[turn] = OVER
                continue
            places[turn], batch = found
            self._done += 1
            yield batch


class _Stream(IterableDataset[Any]):
    """What one worker reads."""

    def __init__(self, shards: Shards, files: list[int], seed: int, epoch: int, place: Place):
        self.shards, self.arguments = shards, (files, seed, epoch, place)

    def __iter__(self) -> Iterator[tuple[Place, Any]]:
        return self.shards.walk(*self.arguments)


class _Collation:
    """A class, for spawned workers unpickle it."""

    def __init__(self, collate_fn: Callable[[Any], Any] | None):
        self.collate_fn = collate_fn or default_collate

    def __call__(self, samples: list[tuple[Place, Any]]) -> tuple[Place, Any]:
        return samples[-1][0], self.collate_fn([sample for _, sample in samples])
