"""Who ended an attempt, as `status` says it: Slurm's own words on it, read from the output of a real job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)
CONFIG = """\
command: [sleep, "600"]
resources: {nodes: 1, tasks_per_node: 1, cpus_per_task: 1, time: 10, partition: low0}
"""


def preempted(cluster: Cluster, run: Run) -> None:
    cluster.preempt(run.job)


def requeued(cluster: Cluster, run: Run) -> None:
    cluster.run("scontrol", "requeue", run.job)


def cancelled(cluster: Cluster, run: Run) -> None:
    cluster.run("scancel", run.job)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (preempted, "preempted"),
        pytest.param(requeued, "requeued by the program or an administrator", marks=pytest.mark.slow),
        pytest.param(cancelled, "cancelled", marks=pytest.mark.slow),
    ],
)
def test_status_names_the_cause_of_an_attempt_killed_without_record(
    cluster: Cluster, project: Path, end: Callable[[Cluster, Run], None], words: str
) -> None:
    (project / "cfg.yaml").write_text(CONFIG)
    run = submit(cluster, project, "cfg.yaml", f"run_dir={project}/run")
    try:
        wait_for("the program", lambda: any(run.files.path.glob("attempts/*/logs/node-*")), 60, report=run.account)
        end(cluster, run)
        over = ("PENDING", "CANCELLED")

        def has_ended() -> bool:  # the fake one may have started the next attempt already
            return cluster.state(run.job)[0] in over or len(run.events("started")) == 2

        wait_for("its end", has_ended, 60, report=run.account)
        assert row(cluster, run, 1) == words, run.account()
        if end is not cancelled:
            cluster.start_now(run.job)
            wait_for("attempt 2", lambda: len(run.events("started")) == 2, 60, report=run.account)
            assert row(cluster, run, 1) == words, run.account()
    finally:
        cluster.run("scancel", run.job)


def row(cluster: Cluster, run: Run, number: int) -> str:
    """How the attempt of that number ended, as `clusterdp status` has it in its last column."""
    done = clusterdp(cluster, run.files.path, "status", str(run.files.path))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{number} ")]
    assert len(lines) == 1, done.stdout
    return lines[0].split("  ")[-1].strip()
