"""find_workers: measures how many samples a second a loader gives with 0, 1, 2, 4, ... workers.

    print(find_workers(loader))               # any DataLoader or job.loader(): a table, and advice

All ranks call find_workers() together, because the ranks of a node share cores and disks. No training runs during the
measurement. The loader and the random streams are left unchanged.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from clusterdp.checkpoint.state import rng
from clusterdp.checkpoint.state.generators import generators_of, kept
from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked
from clusterdp.train.data.datasets import size_of
from clusterdp.train.data.loader_defaults import cpus_of_rank, end_workers
from clusterdp.train.data.sampler import ResumableSampler
from clusterdp.train.data.tensor_loader import TensorLoader
from clusterdp.train.ranks.stop import StopSignal

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

END: Any = object()
SECONDS = 2.0  # seconds of reading for each number of workers
LEAST = 3  # least number of batches to read, however long they take
NEARLY = 0.9  # part of the best speed; the smallest number of workers that reaches it is the best choice
SPARE = 1.1  # factor on the speed of the training, which the loader's speed must reach
SPARE_ALONE = 10.0  # the factor if there are no workers, because the training then waits while each batch is read


@dataclass(frozen=True)
class WorkerSpeeds:
    """speeds: number of workers -> samples per second of the slowest rank. needed: samples per second that the training
    takes."""

    speeds: dict[int, float]
    cpus: int
    needed: float | None = None

    def best(self) -> int:
        """Returns the least number of workers that is fast enough for the training. If the training's speed is unknown,
        returns the least number that is nearly as fast as the fastest."""
        nearly = NEARLY * max(self.speeds.values())
        enough = list(filter(self._is_enough, self.speeds))
        return (enough or [workers for workers, speed in self.speeds.items() if speed >= nearly])[0]

    def _is_enough(self, workers: int) -> bool:
        return self.needed is not None and self.speeds[workers] >= self.needed * (SPARE if workers else SPARE_ALONE)

    def lines(self) -> list[str]:
        table = ["num_workers   samples/s of a rank"]
        table += [f"{workers:>11}{speed:>22.0f}" for workers, speed in self.speeds.items()]
        best = self.best()
        said = f"Try num_workers: {best}, on {self.cpus} cpu{'s' if self.cpus > 1 else ''} a rank."
        if self.needed is not None:
            said += f" The training alone takes {self.needed:.0f} samples/s"
            more = "ask for more cpus (resources.cpus_per_task), or make a sample cheaper to read"
            said += "." if self._is_enough(best) else f", and the loader gives hardly more: {more}."
        return [*table, "", said]

    def __str__(self) -> str:
        return "\n".join(self.lines())


@checked
def find_workers(
    loader: Any, group: Group | None = None, *, most: int | None = None, needed: float | None = None
) -> WorkerSpeeds:
    """Measures a loader. Collective over `group` (None: only this rank measures). most: largest number of workers to
    try; default: the number of a rank's CPUs.

    needed: samples per second that the training of one rank takes.
    """
    if not isinstance(loader, DataLoader) and not hasattr(loader, "with_workers"):
        raise ConfigError(f"find_workers: a {type(loader).__name__} has no num_workers. Pass a DataLoader.")
    place = group.rendezvous if group is not None else None
    cpus = cpus_of_rank(place.local_world_size if place else 1)
    most = cpus if most is None else most
    if group is not None:
        most = group.agree(most, least=True)[0]
    counts = sorted({0, most, *(2**power for power in range(most.bit_length()))})
    speeds = {}
    with rng.kept(), kept(generators_of(loader)):
        for workers in counts:
            mine = samples_per_s(_with_workers(loader, workers))
            # The slowest rank's speed, in thousandths. This exchange also makes all ranks finish this number of workers
            # before a rank begins the next one.
            speeds[workers] = group.agree(int(1000 * mine), least=True)[0] / 1000 if group is not None else mine
    return WorkerSpeeds(speeds, cpus, needed)


def samples_per_s(loader: Any) -> float:
    """Returns the loader's speed, measured after the batches that workers had fetched ahead. If an epoch is too short
    for the measurement, more epochs follow."""
    batches = _endless(loader)
    for _ in range(2 * loader.num_workers + 1):
        next(batches)
    began, read, samples = time.perf_counter(), 0, 0
    while read < LEAST or time.perf_counter() - began < SECONDS:
        samples += size_of(next(batches)) or 1
        read += 1
    speed = samples / (time.perf_counter() - began)
    end_workers(loader)
    return speed


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        with StopSignal.shielded():
            batches = iter(loader)
        if (first := next(batches, END)) is END:
            raise ConfigError("find_workers: the loader gives no batch. Give it data.")
        yield first
        yield from batches


def _with_workers(loader: Any, workers: int) -> Any:
    """Returns another loader of the same batches, from the start of an epoch."""
    if not isinstance(loader, DataLoader):
        return loader.with_workers(workers)
    names = ("collate_fn", "pin_memory", "timeout", "worker_init_fn")
    options: dict[str, Any] = {name: getattr(loader, name) for name in names}
    if workers:
        options |= {"multiprocessing_context": loader.multiprocessing_context, "persistent_workers": True}
        options |= {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
    else:
        options["timeout"] = 0
    options |= {"num_workers": workers, "generator": torch.Generator()}
    plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    if isinstance(loader.dataset, IterableDataset):
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif plain:
        sampler = copy.copy(loader.sampler)
        if isinstance(sampler, ResumableSampler):
            sampler.consumed = 0
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "sampler": sampler}
    else:
        options["batch_sampler"] = loader.batch_sampler
    if isinstance(loader, TensorLoader) and not workers:
        own = {name: options[name] for name in ("sampler", "batch_size", "drop_last", "pin_memory")}
        return TensorLoader(loader.dataset, loader.rows, **own)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # about more workers than CPUs
        return DataLoader(loader.dataset, **options)
