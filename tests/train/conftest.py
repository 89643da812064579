from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.config.tree import CheckpointConfig
from clusterdp.slurm.env import SlurmEnv
from clusterdp.train import Group, JobHandle, Rendezvous, StopSignal
from clusterdp.train.ranks.group import _outlived, seed_everything
from clusterdp.train.settings import WorkerSettings


@pytest.fixture
def group() -> Iterator[Group]:
    """Of this process alone."""
    group = Group.start(Rendezvous.find(SlurmEnv("single"), {}))
    yield group
    group.close()
    # A group has six threads, and two of them wake up a hundred times a second. Models go before it: see _outlived.
    gc.collect()
    _outlived.clear()
    gc.freeze()  # what was imported since takes 50 ms to look through, at each collection


@pytest.fixture
def job(group: Group, tmp_path: Path) -> Iterator[JobHandle]:
    """The handle of a single rank, with a run folder."""
    run_dir = tmp_path / "alone"
    (run_dir / "attempts" / "1.0").mkdir(parents=True)
    seed_everything(0, rank=0)  # as in every attempt
    settings = WorkerSettings(run_dir=run_dir, checkpoint=CheckpointConfig(url=str(run_dir / "checkpoints")))
    with StopSignal() as stop:
        yield JobHandle(settings, group, stop, "1.0")


@pytest.fixture
def forks(forking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the test starts, and ranks that these start, load no torch."""
    monkeypatch.setattr(sys, "executable", str(forking))
