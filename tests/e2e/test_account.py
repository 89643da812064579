"""The account of a run by its records alone is that of Slurm's accounting."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.account import assert_sacct_agrees
from tests.e2e.cluster import Cluster
from tests.e2e.processes import ranks_of
from tests.e2e.run import clusterdp, submit

pytestmark = [pytest.mark.timeout(360), pytest.mark.slow, pytest.mark.long]
CONFIG = ("configs/digits.yaml", "params.epochs=2", "checkpoint.every_s=2", "params.step_delay_s=0.15")


def test_goodput_of_a_preempted_and_killed_run_agrees_with_sacct(cluster: Cluster, project: Path) -> None:
    run = submit(cluster, project, *CONFIG, f"run_dir={project}/run", "resources.partition=low")
    try:
        run.wait_step(15)
        cluster.preempt(run.job)
        cluster.start_now(run.job)
        run.wait_step(60)
        os.kill(ranks_of(run)[0], signal.SIGKILL)
        assert run.wait_end() == "COMPLETED", run.account()
    finally:
        cluster.run("scancel", run.job)
    found = [attempt for attempt in assert_sacct_agrees(run).attempts if attempt.steps]
    preempted, killed, done = found
    assert [attempt.cause for attempt in found] == ["preempted", "crash", "done"], run.account()
    assert preempted.parts.kept > 0
    assert (preempted.steps_lost, preempted.parts.lost, preempted.parts.unseen) == (0, 0, 0)
    assert killed.steps_lost > 0, run.account()
    assert killed.parts.lost > 0
    assert killed.parts.unseen > 0
    assert done.again_s > 0
    assert done.parts.evaluation > 0
    printed = clusterdp(cluster, project, "goodput", str(run.files.path), "--json")
    data = json.loads(printed.stdout)
    assert data["unit"] == "core-hours"
    assert sum(data["parts_s"].values()) == pytest.approx(data["allocated_s"])
    assert {each["cores"] for each in data["attempts"] if each["steps"]} == {4}
