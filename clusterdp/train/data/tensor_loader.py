"""TensorLoader: batches of data in tensors, taken by one indexing operation per batch and not sample by sample.

    loader = job.loader(TensorDataset(x, y), batch_size=1000)       # or (x, y), {"x": x, "y": y}, random_split(...)[0]

The batches equal a DataLoader's batches over the same samples, bit for bit: a run that began with one of the loaders
can continue with the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train.data.resumable_loader import ResumableLoader
from clusterdp.train.data.sampler import ResumableSampler

Indices = torch.Tensor | range
Rows = Callable[[Indices], Any]  # a function from the indices of samples to their batch
OWN = {"batch_size", "drop_last", "pin_memory", "num_workers"}  # with any other option, a DataLoader makes the batches


class TensorLoader(ResumableLoader):
    """sampler: a ResumableSampler, or a range of indices."""

    def __init__(
        self,
        dataset: Any,
        rows: Rows,
        sampler: Any,
        batch_size: int | None,
        drop_last: bool = False,
        pin_memory: bool = False,
    ):
        super().__init__(dataset, batch_size, sampler=sampler, drop_last=drop_last, pin_memory=pin_memory)
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # its iterator is used as a plain one
        share: Any = self.sampler.share() if isinstance(self.sampler, ResumableSampler) else self.sampler
        size = self.batch_size or 1
        pinned = self.pin_memory and torch.cuda.is_available()
        for begin in range(0, len(share) - len(share) % size if self.drop_last else len(share), size):
            batch = self.rows(share[begin : begin + size])
            yield _pinned(batch) if pinned else batch


class Columns(Dataset[Any]):
    """A data set of tensors in tuples and mappings. Each tensor has one row per sample."""

    def __init__(self, columns: Any):
        self.columns = columns
        self._size = min(map(len, _leaves(columns)))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        return _each(self.columns, lambda column: column[index])


def in_columns(data: Any) -> Any:
    """Makes a data set from tuples and mappings of tensors or arrays: a sample is a row. Returns other data unchanged.

    Raises ConfigError if the tensors or arrays differ in length.
    """
    if not isinstance(data, tuple | Mapping) or not data or not _is_columns(data):
        return data
    columns = _each(data, _as_tensor)
    if len(lengths := {len(leaf) for leaf in _leaves(columns)}) > 1:
        raise ConfigError(f"data: its parts have {sorted(lengths)} rows. Give each as many, one for each sample.")
    flat = isinstance(data, tuple) and all(map(_is_array, data))
    return TensorDataset(*columns) if flat else Columns(columns)


def rows_of(dataset: Any, options: Mapping[str, Any]) -> Rows | None:
    """Returns a function that makes a batch from indices; None if options forbid it, or data is not in tensors."""
    if not options.keys() <= OWN or options.get("num_workers") or options.get("batch_size", 1) is None:
        return None
    return _rows_of(dataset)


def _rows_of(dataset: Any) -> Rows | None:
    if type(dataset) is Subset:
        return _rows_of_subset(dataset)
    if (columns := _columns_of(dataset)) is None or not all(map(_is_plain, _leaves(columns()))):
        return None
    return lambda indices: _each(columns(), lambda column: _taken(column, indices))


def _taken(column: torch.Tensor, indices: Indices) -> torch.Tensor:
    """Returns the rows as a contiguous copy, like a collated batch, because a model may change its input in place."""
    if isinstance(indices, range):
        return column[indices.start : indices.stop : indices.step].clone(memory_format=torch.contiguous_format)
    return column.index_select(0, indices.to(column.device))  # index_select() is quicker than column[indices]


def _columns_of(dataset: Any) -> Callable[[], Any] | None:
    """Returns a function that returns the data set's columns. It is called for each batch, because the data set's
    tensors may be replaced."""
    if type(dataset) is TensorDataset:
        return lambda: dataset.tensors
    if type(dataset) is Columns:
        return lambda: dataset.columns
    if isinstance(dataset, torch.Tensor):
        return lambda: dataset
    if isinstance(dataset, numpy.ndarray) and dataset.dtype.kind in "biufc" and dataset.ndim:
        tensor = _as_tensor(dataset)
        return lambda: tensor
    return None


def _rows_of_subset(subset: Subset[Any]) -> Rows | None:
    rows = _rows_of(subset.dataset)
    if rows is None:
        return None
    try:
        places = torch.as_tensor(subset.indices)
    except (TypeError, ValueError, RuntimeError):
        return None
    if places.dtype != torch.int64 or places.ndim != 1 or not len(places) or places.min() < 0:
        return None
    return lambda indices: rows(_taken(places, indices))


def _is_columns(data: Any) -> bool:
    if isinstance(data, Mapping):
        return all(isinstance(name, str) for name in data) and all(map(_is_columns, data.values()))
    if isinstance(data, tuple):
        return all(map(_is_columns, data))
    return _is_array(data)


def _is_array(data: Any) -> bool:
    return isinstance(data, torch.Tensor) or (hasattr(data, "__array__") and hasattr(data, "__len__"))


def _is_plain(column: torch.Tensor) -> bool:
    """Returns whether the tensor is neither a subclass, whose rows may be anything, nor sparse, nested or quantized."""
    strided = column.layout is torch.strided and not column.is_nested and not column.is_quantized
    return type(column) is torch.Tensor and strided and column.ndim > 0 and _can_be_taken(column)


def _can_be_taken(column: torch.Tensor) -> bool:
    """Returns whether this version of torch can index tensors of the dtype; older versions cannot index every dtype."""
    one = torch.zeros(1, dtype=torch.int64, device=column.device)
    try:
        column.new_empty(1).index_select(0, one)
    except RuntimeError:  # torch raises RuntimeError or its subclass NotImplementedError
        return False
    return True


def _as_tensor(array: Any) -> torch.Tensor:
    """Returns the array as a tensor, which shares the array's memory if possible."""
    found: torch.Tensor = array
    if not isinstance(array, torch.Tensor):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # TensorLoader only reads it
                found = torch.as_tensor(numpy.asarray(array))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"data: a {type(array).__name__} cannot be made a tensor: {error}. Convert it.") from None
    if found.ndim == 0:
        raise ConfigError(f"data: a {type(array).__name__} of no dimension has no samples. Give it a row a sample.")
    return found


def _leaves(columns: Any) -> list[torch.Tensor]:
    if isinstance(columns, torch.Tensor):
        return [columns]
    parts = columns.values() if isinstance(columns, Mapping) else columns
    return [leaf for part in parts for leaf in _leaves(part)]


def _each(columns: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to each column. Tuples become lists, as in default_collate."""
    if isinstance(columns, Mapping):
        return {name: _each(part, function) for name, part in columns.items()}
    if isinstance(columns, list | tuple):
        return [_each(part, function) for part in columns]
    return function(columns)


def _pinned(batch: Any) -> Any:
    return _each(batch, lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor)
