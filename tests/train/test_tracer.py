"""Tracer: the steps that were asked for, in a file; in a job, by its config."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from clusterdp.config.tree import ProfileConfig, TraceConfig
from clusterdp.train import JobHandle, Tracer
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.settings import WorkerSettings


def steps_in(file: Path) -> list[str]:
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    assert any(event["name"] == "aten::mul" for event in events)
    return sorted({event["name"] for event in events if event["name"].startswith("ProfilerStep")})


def work(steps: int, tracer: Tracer) -> None:
    for _ in range(steps):
        torch.ones(3) * 2
        tracer.step()


def test_tracer_writes_the_configured_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "trace.json.gz"
    tracer = Tracer(file, start=4, steps=2)
    work(4, tracer)
    assert not file.exists()
    work(5, tracer)
    assert len(steps_in(file)) == 2
    assert capsys.readouterr().out == f"clusterdp: steps 4 to 5 are traced in {file}\n"


def test_tracer_closed_early_writes_the_steps_traced_so_far(tmp_path: Path) -> None:
    early, late = Tracer(tmp_path / "e.json.gz", start=9), Tracer(tmp_path / "l.json.gz", start=3, steps=50)
    work(6, early)
    early.close()
    work(6, late)
    late.close()
    late.close()
    assert [path.name for path in tmp_path.iterdir()] == ["l.json.gz"]
    assert len(steps_in(late.file)) >= 4


@pytest.mark.parametrize("ranks", [(0,), (1,)])
def test_profile_trace_ranks_selects_the_traced_ranks(job: JobHandle, ranks: tuple[int, ...]) -> None:
    settings = WorkerSettings(
        run_dir=job.run_dir, profile=ProfileConfig(trace=TraceConfig(start=3, steps=2, ranks=ranks))
    )
    traced = JobHandle(settings, job.group, job.stop_signal, "1.0")
    for number in traced.loop([torch.ones(3)] * 8, {}):
        number * 2
    assert job.run_dir is not None
    file = job.run_dir / "attempts" / "1.0" / "trace-rank-00000.json.gz"
    assert file.exists() == (ranks == (0,))
    if ranks == (0,):
        assert len(steps_in(file)) == 2
    else:
        assert type(traced.stopwatch) is Stopwatch  # nothing to pay for
