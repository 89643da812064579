"""Defaults for a DataLoader's options, and one-line errors of a DataLoader and its workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from types import FunctionType
from typing import Any

import torch
from torch._C import _error_if_any_worker_fails
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train.data.resumable_loader import ResumableLoader

MOST_WORKERS = 16
DEATH_S = 1.0  # seconds from a worker's closed connection to its end


def loader_defaults(device: torch.device, dataset: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options, with defaults for the missing ones.

    num_workers: one less than Slurm's cpus-per-task, because the training needs one CPU itself. The default is 0
    outside a job; for tensors in memory, which are faster to index than to send; and for an iterable data set, which
    each worker would read as a whole. The loader gets its own generator, from which the workers' seeds come. Memory is
    pinned if the device is a GPU.
    """
    # The loader gets its own generator, because iter() would otherwise draw the workers' seeds from the stream that
    # dropout uses.
    found = {"generator": torch.Generator(), "pin_memory": device.type == "cuda", **options}
    if "num_workers" not in found:
        in_memory = type(dataset) is TensorDataset
        found["num_workers"] = 0 if in_memory or isinstance(dataset, IterableDataset) else default_workers()
    return found


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns torch's error about incompatible options into one line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loader: {str(error).rstrip('. ')}. Change the options.") from None


def default_workers() -> int:
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return max(0, min(MOST_WORKERS, int(cpus) - 1)) if cpus.isdigit() else 0


def cpus_of_rank(local_world_size: int) -> int:
    """Returns the number of CPUs that Slurm gave each task, else this rank's part of the process's CPUs."""
    cpus = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if cpus.isdigit():
        return int(cpus)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, here // local_world_size)


def check_can_be_read_again(what: str, data: Any, epochs: int) -> None:
    """Raises ConfigError for several epochs over data that can be read only once (a generator, a map, a zip, a file).
    An object of a user's class passes the check: its iter() may return the object itself and begin again each time."""
    check_can_be_read(what, data)
    own = isinstance(getattr(type(data), "__iter__", None), FunctionType)
    if epochs > 1 and isinstance(data, Iterator) and not own:
        raise ConfigError(
            f"{what}: a {type(data).__name__} is read once, and {epochs} epochs read it {epochs} times. Pass what can "
            "be read again: the loader itself, or an object whose __iter__ makes the generator."
        )


def check_can_be_read(what: str, data: Any) -> None:
    """Raises ConfigError for data without batches to iterate over, such as a function that returns a generator."""
    if hasattr(data, "__iter__") or hasattr(data, "__getitem__"):
        return
    if isinstance(data, type) or not callable(data):
        raise ConfigError(f"{what}: a {type(data).__name__} is not a data set, tensors or batches. Pass one of these.")
    raise ConfigError(
        f"{what}: {getattr(data, '__name__', type(data).__name__)} is a function, and batches are iterated over. Pass "
        "an object whose __iter__ calls it: that is read anew in each epoch."
    )


def gives_batches(dataset: Any) -> bool:
    """Returns whether a WebDataset pipeline makes batches itself; then a DataLoader must not make batches of them."""
    sizes = [_size_after(stage) for stage in getattr(dataset, "pipeline", None) or ()]
    return [size for size in sizes if size][-1:] == ["batches"]


def _size_after(stage: Any) -> str | None:
    if isinstance(stage, DataLoader):  # a WebLoader's pipeline begins with a DataLoader
        return "batches"
    return {"_batched": "batches", "_unbatched": "samples"}.get(getattr(getattr(stage, "f", None), "__name__", ""))


def end_workers(loader: Any) -> None:
    """Ends persistent workers of a loader. Without this call, the garbage collector would first stop the threads that
    communicate with the workers, then ask the workers to end, and wait 10 s for each worker in vain (torch 2.13)."""
    ours = type(loader) is DataLoader or isinstance(loader, ResumableLoader)
    if ours and loader.persistent_workers and loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def in_a_line(error: BaseException) -> str:
    """Returns an error as one line, for the other ranks."""
    notes = list(getattr(error, "__notes__", ()))
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    if "in DataLoader worker process" in lines[0]:
        # The message is the worker's whole traceback. The cause is in the line after the last indented line.
        last = max((number for number, line in enumerate(lines) if line.startswith(" ")), default=-1)
        return "; ".join(lines[last + 1 :] + notes)
    return "; ".join(lines[:1] + notes)


def dead_worker(error: BaseException) -> str | None:
    """Returns the line to print, with the cause, if the error comes from a dead DataLoader worker; else None."""
    if _is_lost_batch(error):
        error = _death_of_worker() or error
    said = str(error)
    if not isinstance(error, RuntimeError) or not said.startswith("DataLoader worker (pid"):
        return None
    how = said.split("\n")[0].rstrip(". ")
    remedy = (
        "/dev/shm is full: give the container more of it, or torch.multiprocessing.set_sharing_strategy('file_system')"
        if "shared memory" in said or "Bus error" in said
        else "If it was killed, memory ran out: ask for more (resources.mem), or use fewer workers (num_workers)"
    )
    return f"loader: {how}. {remedy}."


def _is_lost_batch(error: BaseException) -> bool:
    """Returns whether a worker's connection broke while a DataLoader fetched a batch from it."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return isinstance(error, (ConnectionError, EOFError)) and any(
        frame.f_globals.get("__name__") == "torch.utils.data.dataloader" for frame in frames
    )


def _death_of_worker() -> RuntimeError | None:
    """Returns torch's error about a dead worker, which comes late: the kernel reports a process's death after it has
    closed the process's connections."""
    deadline = time.monotonic() + DEATH_S
    while time.monotonic() < deadline:
        try:
            _error_if_any_worker_fails()
            time.sleep(0.01)
        except RuntimeError as death:
            return death
    return None
