"""Loaders that are told what they should be, whatever the user leaves out."""

from __future__ import annotations

import io
import signal
import sys
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle
from clusterdp.train.data.datasets import as_dataset
from clusterdp.train.data.loader_defaults import dead_worker, in_a_line
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
def test_default_num_workers_follows_the_cpus_of_the_job(
    job: JobHandle, dataset: Any, cpus: str | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    if cpus:
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", cpus)
    loader = job.loader(dataset, 1)
    assert loader.num_workers == workers
    assert loader.persistent_workers is (workers > 0)
    assert job.loader(dataset, 1, num_workers=1, persistent_workers=False).persistent_workers is False


def test_dead_loader_worker_error_has_a_remedy() -> None:
    killed = RuntimeError("DataLoader worker (pid 77) is killed by signal: Killed. ")
    assert dead_worker(killed) == (
        "loader: DataLoader worker (pid 77) is killed by signal: Killed. If it was killed, memory ran out: ask for "
        "more (resources.mem), or use fewer workers (num_workers)."
    )
    bus = "DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out "
    assert "/dev/shm is full" in (dead_worker(RuntimeError(bus + "of shared memory.")) or "")
    assert dead_worker(RuntimeError("a bad sample")) is None
    assert dead_worker(ValueError("DataLoader worker (pid 77) said no")) is None


def test_connection_reset_by_a_killed_loader_worker_is_reported_as_its_death() -> None:
    """The kernel closes the sockets of a killed process some moments before it reports its end."""
    batches: Any = iter(DataLoader(Noisy(), num_workers=1, timeout=20))
    (worker,) = batches._workers
    worker.is_alive = lambda: True  # as torch sees it in that moment
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's, which would report the end itself

    def get(timeout: float) -> None:
        worker.kill()
        raise ConnectionResetError(104, "Connection reset by peer")

    batches._data_queue.get = get
    try:
        with pytest.raises(ConnectionResetError) as caught:
            next(batches)
        assert f"loader: DataLoader worker (pid {worker.pid}) is killed by signal: Killed" in str(
            dead_worker(caught.value)
        )
        assert dead_worker(ConnectionResetError("of the program's own")) is None
    finally:
        signal.signal(signal.SIGCHLD, handler)


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise ValueError("no picture\nat all")
        return index


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes yet")
@pytest.mark.parametrize("workers", [0, 1])
def test_error_line_of_a_failing_sample_names_its_index_and_epoch(job: JobHandle, workers: int) -> None:
    with pytest.raises(ValueError, match="no picture") as caught:
        list(job.loader(Broken(), 1, num_workers=workers))
    said = in_a_line(caught.value)
    assert said.startswith("ValueError: no picture; ")
    assert said.endswith("sample 5 of the data set, in epoch 0")


def test_error_message_of_several_lines_is_cut_to_its_first_line() -> None:
    assert in_a_line(ValueError("a\nb")) == "ValueError: a"
    assert in_a_line(KeyError()) == "KeyError: "


class Again:
    """An iterator that begins anew whenever it is asked to."""

    def __init__(self, size: int = 2):
        self.size, self.at = size, 0

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at == self.size:
            raise StopIteration
        self.at += 1
        return self.at


READ_ONCE = {
    "generator": lambda: (n for n in range(3)),
    "map": lambda: map(abs, range(3)),
    "zip": lambda: zip(range(3), range(3), strict=True),
    "filter": lambda: filter(None, range(4)),
    "enumerate": lambda: enumerate(range(3)),
    "list_iterator": lambda: iter([1, 2, 3]),
    "islice": lambda: islice(range(9), 3),
    "StringIO": lambda: io.StringIO("1\n2\n3\n"),
}


@pytest.mark.parametrize("kind", READ_ONCE)
def test_iterator_as_loader_is_refused_for_several_epochs(job: JobHandle, kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"^loader: a {kind} is read once, and 3 epochs read it 3 times\. Pass what"):
        job.loop(READ_ONCE[kind](), {}, epochs=3)
    assert len([*job.loop(READ_ONCE[kind](), {})]) == 3


@pytest.mark.parametrize("loader", [[1, 2], Again(), range(2), {1: "a", 2: "b"}.keys()])
def test_reiterable_loader_is_accepted_for_several_epochs(job: JobHandle, loader: Any) -> None:
    assert len([*job.loop(loader, {}, epochs=3)]) == 6


class Spent:
    """Looks as if it could be read again."""

    def __init__(self) -> None:
        self.batches = iter([1, 2])

    def __iter__(self) -> Any:
        return self.batches


@pytest.mark.parametrize(("loader", "epoch"), [(Spent(), 2), (iter(DataLoader(range(2))), 2), (Again(0), 1), ([], 1)])  # type: ignore[arg-type]
def test_epoch_without_a_batch_is_an_error(job: JobHandle, loader: Any, epoch: int) -> None:
    with pytest.raises(ConfigError, match=f"^loader: epoch {epoch} has no batch. Give it data; an iterator"):
        list(job.loop(loader, {}, epochs=3))


class Pipeline(Stream):
    """As WebDataset's are: stages, each a function of the one before; and WebLoaders begin with a DataLoader."""

    def __init__(self, *stages: Any):
        self.pipeline = [stage if isinstance(stage, DataLoader) else SimpleNamespace(f=stage) for stage in stages]


def _batched(data: Any) -> Any: ...


def _unbatched(data: Any) -> Any: ...


@pytest.mark.parametrize(
    ("stages", "batches"),
    [
        ([len, _batched], True),
        ([_batched, len], True),
        ([_batched, _unbatched], False),
        ([_batched, _unbatched, _batched], True),
        ([len], False),
        ([DataLoader(Stream(), None)], True),
        ([DataLoader(Stream(), None), _unbatched], False),
    ],
)
def test_batch_size_is_refused_only_for_pipelines_with_own_batching(job: JobHandle, stages: Any, batches: bool) -> None:
    data = Pipeline(*stages)
    assert job.loader(data, None).batch_size is None
    if not batches:
        assert job.loader(data, 2).batch_size == 2
        return
    with pytest.raises(ConfigError, match=r"^batch_size: this Pipeline makes batches itself\. Pass"):
        job.loader(data, 2)


def test_web_loader_of_webdataset_is_treated_as_loader_not_as_data_set() -> None:
    assert as_dataset(Pipeline(DataLoader(Stream(), None))) is None
    assert isinstance(as_dataset(Pipeline(len)), Pipeline)
