"""Whether a loader of the user's own deals its samples out: several ranks that each train on all of them do the same
work, and nothing fails."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from clusterdp.train.data.prefetch import map_tensors

PLAIN = ("RandomSampler", "SequentialSampler")  # torch's and torchdata's, which know of no ranks
DEEP, LONG = 4, 64  # how far an outline goes: objects in objects, and elements
VALUES = 8  # different ones; batches with fewer may be alike by chance, or made up


def is_whole(loader: Any) -> bool:
    """Whether it goes through its data set as a single process would."""
    batches = getattr(loader, "batch_sampler", None)
    if not isinstance(loader, DataLoader) or type(batches).__name__ not in ("BatchSampler", "NoneType"):
        return False
    return type((loader if batches is None else batches).sampler).__name__ in PLAIN


def outline(thing: Any, deep: int = DEEP) -> str:
    """The outline of an object without reading a sample: its type, its length, its attributes, a few elements.

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
    """The outline of a data set that is gone through as a whole; None where that is dealt out, or may be."""
    if not is_whole(loader):
        return None
    try:
        return outline([len(loader.dataset), loader.dataset])
    except Exception:  # a data set may do anything when it is looked at
        return None


def of_batch(batch: Any) -> str | None:
    """A digest of the tensors in it; None where they hold too few numbers to be told from others."""
    digests: list[str] = []
    values = 0

    def look(tensor: torch.Tensor) -> None:
        nonlocal values
        values += len(torch.unique(_part(tensor)))
        digests.append(_digest(tensor))

    try:
        map_tensors(batch, look)
    except (RuntimeError, TypeError):  # sparse and nested ones have no such view
        return None
    return " ".join(digests) if values >= VALUES else None


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(_part(tensor).view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()


def _part(tensor: torch.Tensor) -> torch.Tensor:
    """Some of its elements, from both ends."""
    values = tensor.detach()
    values = values.reshape(-1) if values.is_contiguous() else values[:LONG].reshape(-1)
    return torch.cat([values[: LONG * LONG], values[-LONG:]]).cpu()
