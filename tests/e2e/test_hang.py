"""A rank that is stopped for good: the run reports it, gives the attempt up as hung, and goes on in the next one.
A job that Slurm suspends has not hung."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import ranks_of
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(360), pytest.mark.slow]


@pytest.fixture(params=["srun", pytest.param("torchrun", marks=pytest.mark.long)])
def run(cluster: Cluster, project: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    words = ("params.epochs=2", "params.step_delay_s=0.1", "checkpoint.every_s=2", f"run_dir={project}/run")
    words += ("restart.hang_after_s=10", "restart.on_hang=restart", f"launch.launcher={request.param}")
    run = submit(cluster, project, "configs/digits.yaml", *words)
    yield run
    cluster.run("scancel", run.job)


def test_job_with_a_sigstopped_rank_is_recorded_as_hung_and_requeued(run: Run) -> None:
    run.wait_step(10)
    (attempt,) = run.files.attempts()
    victim = wait_for("the process of rank 1", lambda: ranks_of(run).get(1, 0), 10)
    os.kill(victim, signal.SIGSTOP)
    wait_for("the end as hung", attempt.hung.exists, 60, report=run.account)
    assert run.wait_end() == "COMPLETED", run.account()
    (hang,) = run.events("hang")
    assert hang["ranks"] == [1]
    assert attempt.hung.read_text().split() == [hang["nodes"]]
    assert "stopped (by SIGSTOP or a debugger)" in attempt.hang.read_text()
    assert not attempt.outcome.exists()
    assert run.causes() == ["hung", "done"], run.account()
    assert not Path(f"/proc/{victim}").exists()


@pytest.mark.long
def test_suspended_job_is_not_recorded_as_hung(cluster: Cluster, project: Path) -> None:
    words = ("params.epochs=2", "params.step_delay_s=0.1", "checkpoint.every_s=2", f"run_dir={project}/run")
    run = submit(cluster, project, "configs/digits.yaml", *words, "restart.hang_after_s=5", "restart.on_hang=restart")
    try:
        run.wait_step(10)
        cluster.run("scontrol", "suspend", run.job)
        wait_for("the ranks to stop", lambda: states(run) == {"T"}, 30, report=run.account)
        time.sleep(20)  # nothing is to happen
        assert states(run) == {"T"}
        cluster.run("scontrol", "resume", run.job)
        assert run.wait_end() == "COMPLETED", run.account()
    finally:
        cluster.run("scancel", run.job)
    assert not run.events("hang"), run.account()
    assert run.causes() == ["done"], run.account()


def states(run: Run) -> set[str]:
    """Of the ranks' processes, as the kernel has them."""
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in ranks_of(run).values()}
