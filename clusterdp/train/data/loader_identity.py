"""Compares a loader with the checkpoint's loader: whether the count of batches still applies, and whether the next
batches have the random numbers of the uninterrupted run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset, default_collate

from clusterdp.checkpoint.state.generators import generators_of
from clusterdp.train.data.resumable_loader import our_sampler
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.shards import Shards

Facts = dict[str, Any]
BATCH = "batch size"


def facts(loader: Any) -> Facts:
    """Returns a loader's description as JSON values; None if unknown. `samples`: the number of samples on this rank."""
    sampler, dataset = getattr(loader, "sampler", None), getattr(loader, "dataset", None)
    iterable = isinstance(dataset, IterableDataset)
    found = {
        "kind": type(loader).__name__,
        "samples": length_of(dataset if iterable or sampler is None else sampler)
        if dataset is not None
        else length_of(loader),
        BATCH: batch_size_of(loader),
        "drop_last": getattr(loader, "drop_last", None) is True,
        "sampler": None if iterable or sampler is None else type(sampler).__name__,
    }
    if iterable:  # in an iterable data set, each worker has its own part of the stream
        found["num_workers"] = _number(getattr(loader, "num_workers", 0))
    return found


def changes(was: Mapping[str, Any], now: Facts) -> list[str]:
    """Returns the differences as text, such as `batch size 4 -> 8`."""
    return [f"{name} {was.get(name)} -> {now.get(name)}" for name in now if name in was and was[name] != now[name]]


def same_place(was: Mapping[str, Any], now: Facts, loader: Any, batches: int) -> int | None:
    """Returns how many batches of this loader cover the first `batches` of the old one; None if unknown.

    The order of a map-style data set does not depend on the batch size.
    """
    size, others = now[BATCH], {name for name in now if now[name] != was.get(name)} - {BATCH}
    plain = isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler
    plain = plain and not isinstance(loader.dataset, IterableDataset)  # each worker makes batches of its own samples
    if others or not plain or not was.get(BATCH) or now["samples"] is None:
        return None
    samples = min(batches * was[BATCH], now["samples"])
    if samples == now["samples"]:
        return len(loader)
    return samples // size if samples % size == 0 else None


def why_not_exact(loader: Any, *, begun: bool, epoch: int, replayed: bool) -> str | None:
    """Returns why a run that resumes in this epoch gets other samples or other random numbers (drawn in the loader's
    workers) than the uninterrupted run; None if it gets the same. Checkpoints do not hold the random streams of
    workers.

    begun: whether the position is after the epoch's start. replayed: whether the resume reads the epoch again from its
    start.
    """
    dataset = getattr(loader, "dataset", None)
    if begun and not replayed and _has_shuffle_buffer(loader if dataset is None else dataset):
        return (
            "its data set shuffles in a buffer, whose samples are in no state: those that were in it do not come any "
            "more in this epoch. torch's DataLoader, which is read again, is exact with shuffle(seed=...), and so is "
            "job.loader() of a data set with indices."
        )
    ours = our_sampler(loader) is not None and not isinstance(dataset, SeededDataset)
    if ours and (begun or epoch) and (own := generators_of([dataset, loader.collate_fn])):
        return (
            f"its data set or collate_fn keeps a {type(next(iter(own.values()))).__name__} of its own, which is in no "
            "checkpoint: what it draws is not exact. With seed_samples=True, it is seeded for each sample, and is."
        )
    draws_nothing = type(dataset) is TensorDataset and getattr(loader, "collate_fn", None) is default_collate
    if not getattr(loader, "num_workers", 0) or isinstance(dataset, SeededDataset | Shards) or draws_nothing:
        return None
    if epoch and getattr(loader, "persistent_workers", False):
        return (
            "its workers stay from epoch to epoch (persistent_workers), and new ones draw other random numbers than "
            "they would have drawn. Where its data set draws any, what comes is not exact; persistent_workers=False "
            "is, or job.loader()."
        )
    if begun and not replayed:
        return (
            "its workers are new in the middle of an epoch, and draw other random numbers than the old ones would have "
            "drawn. Where its data set draws any (augmentations), what comes is not exact; job.loader() seeds each "
            "sample, and is."
        )
    return None


def _has_shuffle_buffer(dataset: Any) -> bool:
    """Returns whether a Hugging Face stream has a shuffle buffer: its state has a position, but no buffer content."""
    if type(dataset).__name__ == "BufferShuffledExamplesIterable":
        return True
    inner = [getattr(dataset, name, None) for name in ("_ex_iterable", "ex_iterable")]
    inner += getattr(dataset, "ex_iterables", None) or []
    return any(_has_shuffle_buffer(part) for part in inner if part is not None)


def length_of(thing: Any) -> int | None:
    try:
        length = len(thing)
    except (TypeError, NotImplementedError):
        return None
    # NVIDIA DALI's iterator without a reader's name does not know its length, and returns 0 or less.
    return None if length <= 0 and getattr(thing, "_size", 0) == -1 else length


def batch_size_of(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return _number(size)


def _number(value: Any) -> int | None:
    """Returns an int that a checkpoint can hold; None for anything else."""
    return int(value) if isinstance(value, int) else None
