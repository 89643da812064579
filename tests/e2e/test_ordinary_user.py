"""The whole life of a job of somebody who is not root: by the commands of an ordinary user alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.ordinary_user import AS_USER, USER, open_to_all, own_folder, own_python, own_variables
from tests.e2e.run import Run, clusterdp, submit
from tests.slurm.testbed import RealSlurm
from tests.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(300)]  # on 24.11 by test_release.py
CONFIG = """\
entry: clusterdp.recipes.digits:main
params: {epochs: 1, step_delay_s: 0.05}
resources: {partition: low, nodes: 1, tasks_per_node: 1, time: 10}
checkpoint: {every_s: 2}
snapshot: {enabled: false}
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with own_folder() as folder:
        yield folder


@pytest.fixture
def theirs(real_slurm: RealSlurm, real_cluster: Cluster, home: Path) -> Cluster:
    """The real cluster, as it is for an ordinary user."""
    open_to_all(real_slurm)
    variables = {**real_cluster.variables, **own_variables(home)}
    cluster = replace(real_cluster, variables=variables, user=AS_USER)
    return replace(cluster, python=own_python("clusterdp.train, torch", home, cluster.environ()))


def says(run: Run, *words: str) -> str:
    done = clusterdp(run.cluster, run.files.path.parent, *words, str(run.files.path))
    assert done.returncode == 0, done.stdout + done.stderr + run.account()
    return done.stdout


def test_job_of_an_ordinary_user_completes_after_preemption_cancel_and_resume(theirs: Cluster, home: Path) -> None:
    (home / "job.yaml").write_text(CONFIG)
    run = submit(theirs, home, "job.yaml", f"run_dir={home}/run")
    run.wait_step(5)
    theirs.preempt(run.job)
    wait_for("its requeue", lambda: theirs.state(run.job)[0] == "PENDING", 60, report=run.account)
    assert "job  waiting (BeginTime: starts at " in says(run, "status")
    theirs.start_now(run.job)
    wait_for("attempt 2", lambda: run.events("restored"), 60, report=run.account)
    assert "job  running" in says(run, "status")
    says(run, "cancel")
    assert run.wait_end() == "CANCELLED", run.account()
    assert "job  cancelled" in says(run, "status")
    resumed = replace(run, job=says(run, "resume").split()[2].rstrip(":"))
    assert resumed.wait_end() == "COMPLETED", run.account()
    assert "job  done" in says(run, "status")
    assert "nothing is left" in says(run, "resume")
    assert run.digest()
    assert {path.owner() for path in run.files.path.rglob("*")} == {USER}
