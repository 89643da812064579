"""make_loader: the loader over this rank's share of a data set, as job.loader() and the Trainer have it."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import LOADER, check_arguments
from clusterdp.train.data.loader_defaults import default_workers, gives_batches, loader_defaults, one_line_errors
from clusterdp.train.data.resumable_loader import ResumableLoader
from clusterdp.train.data.sampler import ResumableSampler
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.shard_loader import ShardLoader
from clusterdp.train.data.shards import Shards
from clusterdp.train.data.tensor_loader import TensorLoader, in_columns, rows_of
from clusterdp.train.ranks.rank import Rank


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
    """See JobHandle.loader."""
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
    if sampler is None:
        ours = ResumableSampler(dataset, shuffle=shuffle, **share)  # type: ignore[arg-type]
    else:
        ours = ResumableSampler.over(sampler, **share)
    _check_has_a_batch(ours, batch_size, drop_last)
    if (rows := rows_of(dataset, given)) is not None:
        with one_line_errors():
            return TensorLoader(dataset, rows, ours, batch_size, drop_last, options["pin_memory"])
    if seed_samples and options["num_workers"]:  # whose numbers do not depend on how old a worker is
        options.setdefault("persistent_workers", True)
    collate_fn = options.get("collate_fn")
    if seed_samples and (type(dataset) is not TensorDataset or collate_fn):  # which draws nothing
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
    return ShardLoader(shards, batch_size, **options)  # type: ignore[return-value]  # is used as one


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
