"""Profiling: a search for a batch size ends in a table, whatever the ranks come to; nothing hangs, nothing is kept."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.config.tree import ProfileConfig
from clusterdp.errors import ConfigError
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.watch import event_line
from clusterdp.train import JobHandle
from clusterdp.train.process.batch_size_search import find_batch_size
from clusterdp.train.profile import worker_finder
from clusterdp.train.profile.profiling import Profiled
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.settings import WorkerSettings
from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "tests.train.trainings:runs_out_of_memory"
FIND = {"steps": 7, "find": "batch-size"}


def test_out_of_memory_on_one_rank_ends_the_batch_size_search(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY, profile=FIND)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        ranks.join()
    assert run.outcome("1.0") == "done profile 0", ranks.log
    found = json.loads(run.dir.attempt("1.0").found.read_text())
    assert [line.split()[0] for line in found[:4]] == ["batch", "8", "16", "32"]
    assert found[3].split(maxsplit=1)[1] == "memory ran out on rank 1"
    assert "Traceback" not in ranks.rank_log(1)
    assert "rank 1: TrainError: batch_size 32: memory ran out on rank 1" in ranks.rank_log(0)
    assert not run.dir.checkpoints.exists()


def test_batch_size_search_in_one_process_records_outcome_done(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY, {"batch_size": 8, "rank": 0}, profile=FIND)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=1, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [0], ranks.log
    assert run.outcome("1.0") == "done profile 0"
    found = json.loads(run.dir.attempt("1.0").found.read_text())
    assert [line.split()[0] for line in found[:4]] == ["batch", "8", "16", "32"]
    history = read_history(run.dir)
    told = [line for event in history.events if event["event"] == "trying" and (line := event_line(event, history))]
    assert told == [f"trying batch_size {size}" for size in (8, 16, 32)]


def test_batch_size_search_requires_a_batch_size_parameter(job: JobHandle) -> None:
    def main(job: JobHandle, lr: float = 0.1) -> None: ...

    with pytest.raises(ConfigError, match=r"main\(\) has no parameter batch_size"):
        find_batch_size(main, job)


def test_batch_size_search_requires_a_loop_or_trainer(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match=r"the entry has no job.loop\(\) and no Trainer"):
        find_batch_size(lambda job, batch_size=2: None, job)


def test_profiled_loop_without_own_laps_measures_forward_backward_and_optimizer(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    laps: list[str] = []
    monkeypatch.setattr(Stopwatch, "lap", lambda watch, name: laps.append(name))
    settings = dataclasses.replace(job._settings, profile=ProfileConfig(steps=1))
    job = JobHandle(settings, job.group, job.stop_signal, "1.0")
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train() -> None:
        for x in job.loop([torch.ones(3, 2)], {"model": net, "optimizer": optimizer}):
            net(x).sum().backward()
            optimizer.step()
            net.eval()(x)

    with pytest.raises(Profiled):
        train()
    assert laps[:5] == ["data", "forward", "backward", "optimizer", "step"]


def test_profile_find_workers_starts_after_the_profiled_steps(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.data import TensorDataset

    monkeypatch.setattr(worker_finder, "samples_per_s", lambda loader: 1e9)
    settings = WorkerSettings(run_dir=job.run_dir, profile=ProfileConfig(steps=7, find="workers"))
    short = JobHandle(settings, job.group, job.stop_signal, "1.0")
    seen: list[Any] = []
    with pytest.raises(Profiled):
        seen.extend(short.loop(short.loader(TensorDataset(torch.zeros(12)), 4), {}))
    assert len(seen) == 7
    assert job.run_dir is not None
    lines = json.loads((job.run_dir / "attempts" / "1.0" / "found.json").read_text())
    assert lines[0].split()[0] == "num_workers"
    assert "The training alone takes" in lines[-1]
