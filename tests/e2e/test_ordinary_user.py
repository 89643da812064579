"""The whole life of a job of somebody who is not root: by the commands of an ordinary user alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.slurm.testbed import ROOT, RealSlurm
from tests.waiting import wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(300)]  # on 24.11 by test_release.py
NOBODY = 65534
# What setpriv starts is itself found with root's rights. What env starts is not.
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env")
CONFIG = """\
entry: clusterdp.recipes.digits:main
params: {epochs: 1, step_delay_s: 0.05}
resources: {partition: low, nodes: 1, tasks_per_node: 1, time: 10}
checkpoint: {every_s: 2}
snapshot: {enabled: false}
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """Theirs: nobody but root may look into the folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="clusterdp-user-"))
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def theirs(real_slurm: RealSlurm, real_cluster: Cluster, home: Path) -> Cluster:
    """The real cluster, as it is for an ordinary user."""
    real_slurm.folder.chmod(0o755)
    (real_slurm.folder / "slurm.conf").chmod(0o644)
    packages = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    own = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), str(home))
    variables = {**real_cluster.variables, **own, "PYTHONPATH": packages}
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        cluster = replace(real_cluster, variables=variables, user=AS_NOBODY, python=python)
        words = [*AS_NOBODY, python, "-c", "import clusterdp.train, torch"]
        if subprocess.run(words, cwd=home, env=cluster.environ(), capture_output=True).returncode == 0:
            return cluster
    pytest.skip("an ordinary user may run no Python here that has what clusterdp needs")


def says(run: Run, *words: str) -> str:
    done = clusterdp(run.cluster, run.files.path.parent, *words, str(run.files.path))
    assert done.returncode == 0, done.stdout + done.stderr + run.account()
    return done.stdout


def test_submitted_preempted_cancelled_resumed_and_done(theirs: Cluster, home: Path) -> None:
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
    assert {path.owner() for path in run.files.path.rglob("*")} == {"nobody"}
