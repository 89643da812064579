"""Profiling: a run that ends after some steps, with their times, and the search for a number of workers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from clusterdp.config.tree import ProfileConfig
from clusterdp.train import JobHandle
from clusterdp.train.profile import worker_finder
from clusterdp.train.profile.profiling import Profiled
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.settings import WorkerSettings


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
