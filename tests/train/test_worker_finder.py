"""find_workers: a table of what the loader gives; the loader and the random numbers are as they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, find_workers
from clusterdp.train.data.tensor_loader import TensorLoader
from clusterdp.train.profile import worker_finder
from clusterdp.train.profile.worker_finder import WorkerSpeeds

DATA = TensorDataset(torch.arange(24))


@pytest.mark.parametrize(
    ("needed", "best"),
    [
        pytest.param(None, 4, id="the fewest that are nearly as fast as the fastest"),
        pytest.param(150.0, 2, id="the fewest that outpace the training"),
        pytest.param(9.0, 0, id="none, where reading costs next to nothing"),
        pytest.param(30.0, 1, id="one, where reading would stop the training for a third of the time"),
        pytest.param(900.0, 4, id="the fastest, and it is too slow"),
    ],
)
def test_best_num_workers_follows_from_the_needed_speed(needed: float | None, best: int) -> None:
    found = WorkerSpeeds({0: 100.0, 1: 90.0, 2: 190.0, 4: 380.0, 8: 400.0}, cpus=8, needed=needed)
    assert found.best() == best
    assert f"Try num_workers: {best}, on 8 cpus a rank." in str(found)
    assert ("ask for more cpus" in str(found)) == (needed == 900.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_finder, "SECONDS", 0.01)


def everything(loader: Any) -> Any:
    sampler = loader.sampler
    own = sampler.generator.get_state() if getattr(sampler, "generator", None) is not None else torch.zeros(1)
    return [torch.get_rng_state().tolist(), own.tolist(), getattr(sampler, "consumed", None)]


@pytest.mark.parametrize("kind", ["ours", "torch's", "with a generator"])
def test_find_workers_leaves_the_loader_unchanged(job: JobHandle, kind: str) -> None:
    loader: Any = {
        "ours": lambda: job.loader(DATA, 4),
        "torch's": lambda: DataLoader(DATA, 4, shuffle=True),
        "with a generator": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=torch.Generator())),
    }[kind]()
    if kind == "ours":
        loader.sampler.advance(20)  # one batch is left of this epoch
    before = everything(loader)
    found = find_workers(loader, job.group, most=1)
    assert [*found.speeds] == [0, 1]
    assert min(found.speeds.values()) > 0
    assert everything(loader) == before


def test_find_workers_measures_a_whole_epoch_of_a_tensor_loader_without_workers(job: JobHandle) -> None:
    loader: Any = job.loader(DATA, 4)
    whole = [batch[0].tolist() for batch in loader]
    loader.sampler.advance(20)
    again = worker_finder._with_workers(loader, 0)
    assert type(again) is TensorLoader
    assert [batch[0].tolist() for batch in again] == whole


def test_find_workers_tries_powers_of_two_and_the_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_finder, "samples_per_s", lambda loader: 1.0 + loader.num_workers)
    assert [*find_workers(DataLoader(DATA), most=6).speeds] == [0, 1, 2, 4, 6]
    assert [*find_workers(DataLoader(DATA), most=0).speeds] == [0]


def test_find_workers_refuses_a_list_or_an_empty_loader() -> None:
    with pytest.raises(ConfigError, match="a list has no num_workers"):
        find_workers([1, 2])
    with pytest.raises(ConfigError, match="the loader gives no batch"):
        find_workers(DataLoader(TensorDataset(torch.zeros(0))), most=0)
