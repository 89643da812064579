"""A job that Slurm has requeued: its earlier attempt leaves it alone, and what is over stays over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.account import assert_sacct_agrees
from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)

PROGRAM = """\
import os, pathlib, time
with open("ran", "a") as file:
    print(os.environ["CLUSTERDP_ATTEMPT"], file=file)
while not pathlib.Path("stop").exists():
    time.sleep(0.1)
"""


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Callable[[], Run]]:
    """A program of one rank, which runs until there is a file `stop` in its folder, and notes each of its attempts."""
    started: list[Run] = []

    def start() -> Run:
        (project / "program.py").write_text(PROGRAM)
        words = f"command: [{sys.executable}, program.py]\nsnapshot: {{enabled: false}}\n"
        (project / "job.yaml").write_text(words)
        run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
        started.append(run)
        wait_for("the program to run", lambda: ran(project), 60, report=run.account)
        return run

    yield start
    (project / "stop").touch()
    for run in started:
        cluster.run("scancel", run.job)


def ran(project: Path) -> list[str]:
    path = project / "ran"
    return path.read_text().split() if path.exists() else []


def test_batch_script_of_an_overtaken_attempt_does_not_requeue_the_job(
    cluster: Cluster, start: Callable[[], Run], project: Path, tmp_path: Path
) -> None:
    """As that of a node which was cut off, and ends when the job runs elsewhere already: here it runs beside it."""
    run = start()
    cluster.run("scontrol", "requeue", run.job)
    cluster.start_now(run.job)
    wait_for("the second attempt", lambda: len(ran(project)) == 2, 60, report=run.account)
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/bash\nexit 1\n")
    srun.chmod(0o755)
    environ = cluster.environ() | {"SLURM_JOB_ID": run.job, "SLURM_JOB_NODELIST": "n1"}
    environ["PATH"] = f"{srun.parent}{os.pathsep}{environ['PATH']}"
    earlier = run.files.attempts()[0]
    earlier.cause.unlink(missing_ok=True)  # nor does it know by the files
    words = ["bash", str(run.files.script)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert f"attempt {run.job}.0 no longer acts for it" in done.stderr, done.stderr
    assert not earlier.cause.exists()
    assert cluster.state(run.job)[0] == "RUNNING"
    (project / "stop").touch()
    assert run.wait_end() == "COMPLETED", run.account()
    assert ran(project) == [f"{run.job}.0", f"{run.job}.1"]


def test_job_on_a_failed_node_is_requeued_as_node_lost(
    cluster: Cluster, start: Callable[[], Run], project: Path
) -> None:
    run = start()
    with cluster.without_node_of(run.job):
        wait_for("its requeue", lambda: cluster.state(run.job)[0] != "RUNNING", 60, report=run.account)
        cluster.start_now(run.job)
        wait_for("the second attempt", lambda: len(ran(project)) == 2, 60, report=run.account)
    (project / "stop").touch()
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["node-lost", "done"], run.account()
    assert_sacct_agrees(run)


def test_done_job_requeued_by_hand_does_not_run_again(
    cluster: Cluster, start: Callable[[], Run], project: Path
) -> None:
    run = start()
    (project / "stop").touch()
    assert run.wait_end() == "COMPLETED", run.account()
    cluster.run("scontrol", "requeue", run.job)
    cluster.start_now(run.job)
    assert run.wait_end() == "COMPLETED", run.account()
    assert list(run.all_causes().values()) == ["done", "done"], run.account()
    assert ran(project) == [f"{run.job}.0"]


def test_cancelled_job_requeued_by_hand_does_not_run_again(
    cluster: Cluster, start: Callable[[], Run], project: Path
) -> None:
    """Slurm accepts that; so may it be with the requeue that the batch script asks for."""
    run = start()
    cluster.run("scancel", run.job)
    cluster.run("scontrol", "requeue", run.job)
    cluster.start_now(run.job)
    assert run.wait_end() == "FAILED", run.account()
    assert run.causes()[-1] == "cancelled", run.account()
    assert ran(project) == [f"{run.job}.0"]
