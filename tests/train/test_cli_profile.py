"""`clusterdp profile`: what it prints comes from the run folder; what it runs is short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterdp import cli
from clusterdp.cli.profile import lines_of
from clusterdp.config.tree import ProfileConfig
from clusterdp.errors import RunError
from clusterdp.rundir import RunDir
from clusterdp.train import JobHandle
from clusterdp.train.profile.profiling import Profiled
from clusterdp.train.settings import WorkerSettings


def test_profile_shows_the_newest_attempt_with_measured_steps(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(RunError, match="no steps were measured"):
        lines_of(run)
    for name in ("7.0", "7.1"):
        run.attempt(name).path.mkdir(parents=True)
    report = {"steps": 35, "table": ["rank   ms a step"], "diagnosis": ["All is well."], "ranks": []}
    run.attempt("7.0").times.write_text(json.dumps(report))
    assert lines_of(run)[:3] == ["rank   ms a step", "", "All is well."]


def test_profile_refuses_a_config_with_command_instead_of_entry(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("command: python train.py\n")
    assert cli.main(["profile", str(config)]) == 2
    assert "profile: only an entry: with job.loop() can be profiled" in capfd.readouterr().err


def test_loop_ends_after_the_configured_profile_steps(job: JobHandle) -> None:
    short = JobHandle(WorkerSettings(profile=ProfileConfig(steps=7)), job.group, job.stop_signal, "1.0")
    loop = short.loop([[i] for i in range(5)], {}, epochs=1)
    seen = []
    with pytest.raises(Profiled):
        seen.extend(loop)
    assert len(seen) == loop.step == 7  # more than an epoch has; and nothing after the loop is reached
