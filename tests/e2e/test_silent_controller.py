"""Slurm's controller does not answer when an attempt ends: its script waits, and the run goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from tests.e2e.cluster import Cluster
from tests.e2e.processes import daemons
from tests.e2e.run import submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.long]
SILENT_S = 30  # commands give up after 10 s, or 20
CONFIG = """\
command: [bash, program.sh]
snapshot: {enabled: false}
resources: {nodes: 1, tasks_per_node: 1, time: 10}
"""
ASKS = """\
echo x >>ran
[ $(wc -l <ran) = 1 ] || exit 0
until [ -e go ]; do sleep 0.1; done
exit 75
"""


@contextmanager
def silence(cluster: Cluster) -> Iterator[None]:
    """Commands get no answer; a real slurmctld is stopped, so that connections to it are accepted all the same."""
    conf = Path(cluster.variables["SLURM_CONF"])
    if cluster.name == "fake":
        fake = FakeCluster.attach(conf.parent)
        fake.slow(by_s=600)
        try:
            yield
        finally:
            fake.slow(0)
        return
    (pid,) = daemons(cluster, "slurmctld", "-D")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_batch_script_waits_for_a_silent_controller_before_requeueing(cluster: Cluster, project: Path) -> None:
    (project / "program.sh").write_text(ASKS)
    (project / "job.yaml").write_text(CONFIG)
    srun_waits = " 26." in cluster.run(
        "scontrol", "--version"
    )  # for the controller as well, and ends when that answers
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    try:
        wait_for("the program", (project / "ran").exists, 60, report=run.account)
        with silence(cluster):
            (project / "go").touch()
            if not srun_waits:
                wait_for("its end", lambda: bool(run.events("exited")), 30)
            time.sleep(SILENT_S)  # nothing is to happen
            assert not run.events("requeued")
        assert run.wait_end() == "COMPLETED", run.account()
    finally:
        cluster.run("scancel", run.job)
    assert run.causes() == ["asked", "done"], run.account()
    requeued, exited = run.events("requeued")[0]["time"], run.events("exited")[0]["time"]
    assert srun_waits or requeued - exited >= SILENT_S, run.account()
