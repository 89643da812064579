"""A node that is silent, and a --no-kill job that loses the node of its batch script."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import keepers_on, lost, nodes_of, processes_on
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(360)

Start = Callable[..., Run]


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Start]:
    """Submits the digits in slow motion."""
    started: list[Run] = []

    def start(*words: str) -> Run:
        words = ("checkpoint.every_s=1", "params.step_delay_s=0.1", f"run_dir={project}/run", *words)
        run = submit(cluster, project, "configs/digits.yaml", *words)
        started.append(run)
        run.wait_step(10)
        wait_for("the keepers", lambda: len(keepers_on(run)) == 2, 30, report=run.account)
        return run

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@pytest.mark.slow  # here; in test-slurm it runs all the same
def test_silent_node_is_named_and_the_run_goes_on(start: Start) -> None:
    run = start("params.epochs=2")
    node = nodes_of(run)[1]
    pids = processes_on(run, node)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for("its name", lambda: run.events("silent"), 30, report=run.account)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    (event,) = run.events("silent")
    assert event["nodes"] == node, run.account()
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["done"], run.account()
    assert [each["nodes"] for each in run.events("silent-ended")] == [node], run.account()


def test_no_kill_job_without_its_batch_host_is_requeued(cluster: Cluster, start: Start) -> None:
    if cluster.run("srun", "--version").split()[-1] < "23":
        pytest.skip("such a job fails in this release")
    run = start("resources.extra={no-kill: true}", "params.epochs=2")
    first = nodes_of(run)[0]
    with lost(run, first):
        wait_for("the requeue", lambda: run.events("requeued"), 60, report=run.account)
        (event,) = run.events("requeued")
        assert (event["cause"], event["of"]) == ("node-lost", f"{run.job}.0"), run.account()
        assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["node-lost", "done"], run.account()
    assert run.files.attempt(f"{run.job}.0").avoid.read_text().split() == [first]
    assert first not in run.events("started")[1]["nodes"], run.account()
