"""Loaders that are told what they should be, whatever the user leaves out."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from clusterdp.train import JobHandle
from clusterdp.train.loading import dead_worker, in_a_line
from tests.train.trainings import Noisy


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # this machine may have fewer CPUs
@pytest.mark.parametrize(
    ("dataset", "cpus", "workers"),
    [
        (Noisy(), "8", 7),
        (Noisy(), "1", 0),
        (Noisy(), "64", 16),
        (Noisy(), None, 0),  # no job: nobody said how many there are for us
        (TensorDataset(torch.ones(3)), "8", 0),  # indexing is quicker than sending
        (Stream(), "8", 0),  # each worker would read all of it
    ],
)
def test_workers_are_as_many_as_the_job_has_room_for(
    job: JobHandle, dataset: Any, cpus: str | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if cpus:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    loader = job.loader(dataset, 1)
    assert loader.num_workers == workers
    assert loader.persistent_workers is (workers > 0)
    assert job.loader(dataset, 1, num_workers=1, persistent_workers=False).persistent_workers is False


def test_a_workers_death_is_told_with_a_remedy() -> None:
    killed = RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. ")
    assert dead_worker(killed) == (
        "loader: DataLoader worker (pid 77) is killed by signal: Killed. If it was killed, memory ran out: ask for "
        "more (resources.mem), or use fewer workers (num_workers)."
    )
    bus = "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out "
    assert "/dev/shm is full" in (dead_worker(RuntimeError(bus + "of shared memory.")) or "")
    assert dead_worker(RuntimeError("a bad sample")) is None
    assert dead_worker(ValueError("DataLoader worker (pid 77) said no")) is None


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("no picture\nat all")
        return index


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes yet")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_broken_sample_is_named_in_one_line_also_from_a_worker(job: JobHandle, workers: int) -> None:
    with pytest.raises(ValueError, match="no picture") as caught:
        list(job.loader(Broken(), 1, num_workers=workers))
    said = in_a_line(caught.value)
    assert said.startswith("ValueError: no picture; ")
    assert said.endswith("sample 5 of the data set, in epoch 0")


def test_an_error_of_many_lines_is_told_by_its_first() -> None:
    assert in_a_line(ValueError("a\nb")) == "ValueError: a"
    assert in_a_line(KeyError()) == "KeyError: "
