"""What a user hands in as data, as batches of this rank: data sets are dealt out, iterables taken as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train.loading import loader_defaults
from clusterdp.train.seeded import SeededDataset

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle


def training_data(job: JobHandle, data: Any, batch_size: int, options: Mapping[str, Any]) -> Iterable[Any]:
    """Shuffled, unless options say otherwise."""
    dataset = as_dataset(data)
    if dataset is not None:
        return job.loader(dataset, batch_size, **options)
    _refuse_options(options)
    if job.world_size > 1 and _is_whole(data):
        raise ConfigError(
            f"train: a DataLoader over the whole data set, which each of {job.world_size} ranks would train on. "
            "Pass the data set itself, or a job.loader() of it."
        )
    return data  # type: ignore[no-any-return]


def shared_out(
    job: JobHandle, data: Any, batch_size: int, options: Mapping[str, Any], what: str
) -> tuple[Iterable[Any], int | None]:
    """To look at each sample once: rank r has every W-th from r on, no padding. With the size of the data, if known."""
    dataset = as_dataset(data)
    if dataset is not None and not isinstance(dataset, IterableDataset):
        size = len(dataset)  # type: ignore[arg-type]
        share = range(job.rank, size, job.world_size)
        options = loader_defaults(job, dataset, {"batch_size": batch_size, **options})
        options.pop("shuffle", None)
        options.pop("drop_last", None)
        if type(dataset) is not TensorDataset:
            dataset = SeededDataset(dataset, job.seed)  # and the training's random numbers are left alone
        return DataLoader(dataset, sampler=share, **options), size
    if dataset is not None:
        return job.loader(dataset, batch_size, **options), None
    _refuse_options(options)
    if job.world_size > 1 and (what == "predict" or _is_whole(data)):
        raise ConfigError(
            f"{what}: a {type(data).__name__}, of which nobody knows which of {job.world_size} ranks has which sample. "
            "Pass the data set itself."
        )
    return data, None


def as_dataset(data: Any) -> Dataset[Any] | None:
    """None if it is a loader, or any other iterable of batches."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, torch.Tensor):
        return TensorDataset(data)
    if isinstance(data, tuple) and data and all(hasattr(part, "__array__") for part in data):
        return TensorDataset(*(torch.as_tensor(part) for part in data))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | Mapping | str):
        return data  # type: ignore[no-any-return]  # as DataLoader takes it: a data set need not be a Dataset
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ConfigError(f"data: a {type(data).__name__} is no data set, no tensors and no batches. Pass one of them.")
    return None


def _is_whole(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and type(loader.sampler) in (RandomSampler, SequentialSampler)


def _refuse_options(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"{min(options)}: is an option of the loader, and this loader is made. Set it there.")
