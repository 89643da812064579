"""Makes this rank's batches from the user's data. Data sets are divided among the ranks, and iterables are used as they
are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train.data.dealt_out import is_whole
from clusterdp.train.data.loader_defaults import check_can_be_read, loader_defaults, one_line_errors
from clusterdp.train.data.make_loader import make_loader
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.tensor_loader import TensorLoader, in_columns, rows_of
from clusterdp.train.ranks.rank import Rank

OF_TRAINING = ("shuffle", "drop_last", "sampler", "batch_sampler", "seed_samples")  # options that choose the samples


def training_data(rank: Rank, data: Any, batch_size: int | None, options: Mapping[str, Any]) -> Iterable[Any]:
    """Returns the training batches of this rank, shuffled unless options forbid it."""
    dataset = as_dataset(data)
    if dataset is not None:
        return make_loader(rank, dataset, batch_size, **options)
    _refuse_options(options)
    if rank.world_size > 1 and is_whole(data):
        raise ConfigError(
            f"train: a DataLoader over the whole data set, which each of {rank.world_size} ranks would train on. "
            "Pass the data set itself, or a job.loader() of it."
        )
    return data  # type: ignore[no-any-return]


def evaluation_data(
    rank: Rank, data: Any, batch_size: int | None, options: Mapping[str, Any], what: str
) -> tuple[Iterable[Any], int | None]:
    """Returns batches that have each sample once, and the number of samples, if known. Rank r of W has the samples
    r, r + W, ..., without padding."""
    dataset = as_dataset(data)
    if dataset is None:
        _refuse_options(options)
    else:
        for name in ("sampler", "batch_sampler"):
            if options.get(name) is not None:
                raise ConfigError(f"{name}: {what} looks at each sample once. Pass a Subset of the data instead.")
        options = {"batch_size": batch_size, **_without(OF_TRAINING, options)}
    if dataset is not None and not isinstance(dataset, IterableDataset):
        size = len(dataset)  # type: ignore[arg-type]
        if size == 0:
            raise ConfigError(f"{what}: the data set is empty. Give it samples.")
        share, whole = range(rank.number, size, rank.world_size), None if options["batch_size"] is None else size
        if whole is None and what == "predict" and rank.world_size > 1:
            raise ConfigError("batch_size: None leaves open which rank's samples come where. Predict on one rank.")
        rows = rows_of(dataset, options)
        options = loader_defaults(rank.device, dataset, options)
        if rows is not None:
            with one_line_errors():
                return TensorLoader(dataset, rows, share, options["batch_size"], pin_memory=options["pin_memory"]), size
        collate_fn = options.get("collate_fn")
        if type(dataset) is not TensorDataset or collate_fn:
            dataset = SeededDataset(dataset, rank.seed)  # keeps the training's random numbers unchanged
            if collate_fn:
                options["collate_fn"] = dataset.collation(collate_fn)
        with one_line_errors():
            return DataLoader(dataset, sampler=share, **options), whole
    if dataset is not None:
        return make_loader(rank, dataset, **options), None
    if rank.world_size > 1 and (what == "predict" or is_whole(data)):
        raise ConfigError(
            f"{what}: a {type(data).__name__}, for which it is not known which of {rank.world_size} ranks has which "
            "sample. Pass the data set itself."
        )
    return data, None


def options_of_val(data: Any, training: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the validation's loader: its own, and those options of the training that also apply."""
    return {**(_without(OF_TRAINING, training) if as_dataset(data) is not None else {}), **own}


def as_dataset(data: Any) -> Dataset[Any] | None:
    """Returns the data as a data set; None for a loader, or any other iterable of batches."""
    if isinstance(data, torch.Tensor):
        return TensorDataset(data)
    if isinstance(data, torch.nn.Module):
        raise ConfigError(f"data: a {type(data).__name__} is a model, and the Trainer has one. Pass data.")
    if isinstance(data := in_columns(data), Dataset):
        return None if _is_webloader(data) else data
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | Mapping | str):
        return data  # type: ignore[no-any-return]  # DataLoader accepts it: a data set need not be a Dataset
    check_can_be_read("data", data)
    if not isinstance(data, Iterable) or isinstance(data, str):
        raise ConfigError(f"data: a {type(data).__name__} is not a data set, tensors or batches. Pass one of these.")
    return None


def _is_webloader(dataset: Any) -> bool:
    """Returns whether this is a WebDataset loader: a data set by its type, whose pipeline begins with a DataLoader."""
    return isinstance(next(iter(getattr(dataset, "pipeline", None) or ()), None), DataLoader)


def _without(names: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: option for name, option in options.items() if name not in names}


def _refuse_options(options: Mapping[str, Any]) -> None:
    if options:
        raise ConfigError(f"{min(options)}: is an option of the loader, and this loader is made. Set it there.")


def is_same(data: Any, before: Any) -> bool:
    """Returns whether both arguments are the same data, even if the user has created the object again. Data sets of
    other types are compared by type and length."""
    data, before = (each if isinstance(each, Dataset) else getattr(each, "dataset", each) for each in (data, before))
    if data is before or type(data) is not type(before):
        return data is before
    if isinstance(data, torch.Tensor):
        return torch.equal(data, before)
    if isinstance(data, tuple):
        return len(data) == len(before) and all(map(is_same, data, before))
    if isinstance(data, TensorDataset):
        return is_same(data.tensors, before.tensors)
    if isinstance(data, Subset):
        return is_same(data.dataset, before.dataset) and list(data.indices) == list(before.indices)
    return not isinstance(data, Sized) or len(data) == len(before)


def size_of(batch: Any) -> int:
    """Returns the number of samples in a batch: the length of its first tensor."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    parts = batch if isinstance(batch, (list, tuple)) else batch.values() if isinstance(batch, Mapping) else ()
    for part in parts:
        if size := size_of(part):
            return size
    return 0
