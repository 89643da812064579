"""make_loader: makes the loader over this rank's share of a data set, for job.loader() and the Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset, default_collate

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import check_arguments, checked
from clusterdp.train.data.loader_defaults import default_workers, gives_batches, loader_defaults, one_line_errors
from clusterdp.train.data.resumable_loader import ResumableLoader
from clusterdp.train.data.sampler import ResumableSampler
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.shards import START, Place, Shards
from clusterdp.train.data.tensor_loader import TensorLoader, in_columns, rows_of
from clusterdp.train.ranks.rank import Rank

LOADER = [*inspect.signature(DataLoader).parameters][2:]  # DataLoader's arguments except data set and batch size
LOADER += ["seed_samples"]
OVER: Place = (-1, 0)  # the place of a stream that has ended
END: Any = object()


@checked
def make_loader(
    rank: Rank,
    dataset: Any,
    batch_size: int | None,
    *,
    shuffle: bool = True,
    drop_last: bool = False,
    sampler: Sampler[int] | None = None,
    seed_samples: bool = True,
    **options: Any,
) -> DataLoader[Any]:
    """Makes the loader of JobHandle.loader(), which documents the options."""
    check_arguments("loader", options, LOADER)
    if options.get("batch_sampler") is not None:
        raise ConfigError(
            "batch_sampler: job.loader() makes the batches itself. Pass sampler=, an order of all samples; or make a "
            "DataLoader(data, batch_sampler=...) whose batches are those of this rank, and pass that to job.loop()."
        )
    share = {"rank": rank.number, "world_size": rank.world_size, "seed": rank.seed, "drop_last": drop_last}
    if isinstance(dataset, Shards):
        return _shard_loader(rank, dataset, batch_size, options | share)
    dataset = in_columns(dataset)
    given = {"batch_size": batch_size, "drop_last": drop_last, **options}
    options = loader_defaults(rank.device, dataset, given)
    if isinstance(dataset, IterableDataset):
        return _iterable_loader(dataset, options)
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"dataset: a {dataset.__name__ if isinstance(dataset, type) else type(dataset).__name__} has no samples by "
            "number. Pass a data set; a DataLoader goes to job.loop() as it is."
        )
    if sampler is None:
        ours = ResumableSampler(dataset, shuffle=shuffle, **share)  # type: ignore[arg-type]
    else:
        ours = ResumableSampler.over(sampler, **share)
    _check_has_a_batch(ours, batch_size, drop_last)
    if (rows := rows_of(dataset, given)) is not None:
        with one_line_errors():
            return TensorLoader(dataset, rows, ours, batch_size, drop_last, options["pin_memory"])
    if seed_samples and options["num_workers"]:  # seeded samples do not depend on a worker's age
        options.setdefault("persistent_workers", True)
    collate_fn = options.get("collate_fn")
    if seed_samples and (type(dataset) is not TensorDataset or collate_fn):  # a TensorDataset draws no random numbers
        dataset = SeededDataset(dataset, rank.seed)
        ours.numbered = sampler is not None
        if collate_fn is not None:
            options["collate_fn"] = dataset.collation(collate_fn)
    with one_line_errors():
        return ResumableLoader(dataset, sampler=ours, **options)


def _shard_loader(rank: Rank, shards: Shards, batch_size: int | None, options: dict[str, Any]) -> DataLoader[Any]:
    if batch_size is None:
        raise ConfigError("batch_size: None, and Shards give single samples. Say how many make a batch.")
    options = {"num_workers": default_workers(), "pin_memory": rank.device.type == "cuda", **options}
    return ShardLoader(shards, batch_size, **options)  # type: ignore[return-value]  # is used as a DataLoader


def _iterable_loader(dataset: IterableDataset[Any], options: dict[str, Any]) -> DataLoader[Any]:
    if options["batch_size"] is not None and gives_batches(dataset):
        raise ConfigError(f"batch_size: this {type(dataset).__name__} makes batches itself. Pass batch_size=None.")
    with one_line_errors():
        return DataLoader(dataset, **options)


def _check_has_a_batch(sampler: ResumableSampler, batch_size: int | None, drop_last: bool) -> None:
    if sampler.size == 0 or (drop_last and len(sampler) < (batch_size or 1)):
        raise ConfigError(
            f"loader: {sampler.size} samples are not a batch of {batch_size} for each of {sampler.world_size} ranks"
            f"{', and drop_last drops what is less' if drop_last else ''}. Use more data, fewer ranks, smaller "
            "batches, or drop_last=False."
        )


class ShardLoader:
    """options: DataLoader's. The order depends on (seed, epoch, rank, num_workers). An epoch that began with another
    number of workers ends with that number."""

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
        self._places: list[Place] = []  # the place of each stream; empty at the start of an epoch
        self._turn = 0  # the stream that is read next
        self._done = 0  # number of batches of this epoch that were handed out
        dataset.dealt(rank, world_size, seed, 0)  # this call raises ConfigError if there are too few files

    def with_workers(self, workers: int) -> ShardLoader:
        """Returns another loader with this number of workers, at the start of an epoch."""
        options: dict[str, Any] = {**self._share, **self._options, "collate_fn": self.collate_fn}
        return ShardLoader(self.dataset, self.batch_size, num_workers=workers, **options)

    def __len__(self) -> int:
        if self.dataset.batches is None:
            raise TypeError("shards have no length, unless batches= gives it")
        return self.dataset.batches

    @property
    def done(self) -> int:
        """The number of batches of this epoch that were handed out."""
        return self._done

    @property
    def left(self) -> int:
        """The number of batches of this epoch that are left. Raises TypeError if the shards have no length."""
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
        """Returns an iterator over the batches. The workers have started when this method returns."""
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
        # The DataLoader gets its own generator, because iter() would otherwise draw from the stream that dropout uses.
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
    """The samples that one worker reads."""

    def __init__(self, shards: Shards, files: list[int], seed: int, epoch: int, place: Place):
        self.shards, self.arguments = shards, (files, seed, epoch, place)

    def __iter__(self) -> Iterator[tuple[Place, Any]]:
        return self.shards.walk(*self.arguments)


class _Collation:
    """The collate_fn of a ShardLoader. This is a class, because spawned workers must be able to unpickle it."""

    def __init__(self, collate_fn: Callable[[Any], Any] | None):
        self.collate_fn = collate_fn or default_collate

    def __call__(self, samples: list[tuple[Place, Any]]) -> tuple[Place, Any]:
        return samples[-1][0], self.collate_fn([sample for _, sample in samples])
