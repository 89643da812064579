"""Detects whether a user's loader divides its samples among the ranks. If each rank trains on all samples, the ranks
repeat each other's work, and nothing fails."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, default_convert

from clusterdp.train.data.prefetch import map_tensors

PLAIN = ("RandomSampler", "SequentialSampler")  # samplers of torch and torchdata that do not divide samples among ranks
DEEP, LONG = 4, 64  # limits of an outline: levels of nested objects, and elements
VALUES = 8  # a batch with fewer different values may be synthetic, or equal to another batch by chance


def is_whole(loader: Any) -> bool:
    """Returns whether the loader reads its whole data set, as in a single process."""
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or type(batches).__name__ not in ("BatchSampler", "NoneType"):
        return False
    return type((loader if batches is None else batches).sampler).__name__ in PLAIN


def outline(thing: Any, deep: int = DEEP) -> str:
    """Returns a digest of an object's type, length, attributes and a few elements, without reading a sample.

    A data set that holds a part of the samples has another outline on each rank.
    """
    found: Any = None
    if thing is None or isinstance(thing, bool | int | float | str | bytes):
        found = thing
    elif isinstance(thing, torch.Tensor):
        found = [list(thing.shape), _digest(thing)]
    elif isinstance(thing, numpy.ndarray):
        found = [list(thing.shape), repr(thing.flat[:LONG])]
    elif deep and isinstance(thing, Mapping):
        found = [len(thing), *(outline(part, deep - 1) for part in [*thing.items()][:LONG])]
    elif deep and isinstance(thing, list | tuple | range):
        found = [len(thing), *(outline(part, deep - 1) for part in (*thing[:LONG], *thing[-LONG:]))]
    elif deep:
        found = [[name, outline(part, deep - 1)] for name, part in sorted(getattr(thing, "__dict__", {}).items())]
    return hashlib.blake2b(f"{type(thing).__qualname__} {found!r}".encode(), digest_size=8).hexdigest()


def of_data_set(loader: Any) -> str | None:
    """Returns the outline of a data set that each rank reads as a whole; None if it may be divided among ranks."""
    if not is_whole(loader):
        return None
    try:
        return outline([len(loader.dataset), loader.dataset])
    except Exception:  # a data set may raise anything when it is inspected
        return None


def of_batch(batch: Any) -> str | None:
    """Returns a digest of a batch's tensors and arrays; None if they hold too few numbers to identify the batch."""
    digests: list[str] = []
    values = 0

    def look(tensor: torch.Tensor) -> None:
        nonlocal values
        values += len(torch.unique(_part(tensor)))
        digests.append(_digest(tensor))

    try:
        map_tensors(default_convert(batch), look)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError):  # sparse and nested tensors cannot be viewed in this way
        return None
    return " ".join(digests) if values >= VALUES else None


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(_part(tensor).view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()


def _part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns some elements of the tensor, from both ends."""
    values = tensor.detach()
    values = values.reshape(-1) if values.is_contiguous() else values[:LONG].reshape(-1)
    return torch.cat([values[: LONG * LONG], values[-LONG:]]).cpu()
