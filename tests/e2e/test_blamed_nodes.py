"""The node that the next attempt avoids is that of the rank that failed first, and not one of those that only followed.

The same on the fake and on a real Slurm.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterdp.slurm.hostlist import expand
from tests.e2e.cluster import Cluster
from tests.e2e.processes import processes_of, ranks_of, without_slurmd
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

SIZE = ("resources.partition=main", "resources.nodes=2", "restart.in_place=false")
DIGITS = ("configs/digits.yaml", *SIZE, "resources.tasks_per_node=2", "params.epochs=2", "params.step_delay_s=0.1")


@contextmanager
def going(cluster: Cluster, project: Path, *words: str) -> Iterator[Run]:
    run = submit(cluster, project, *words, f"run_dir={project}/run")
    try:
        yield run
    finally:
        cluster.run("scancel", run.job)


def nodes_of(run: Run) -> list[set[str]]:
    """Of each attempt that started."""
    return [set(expand(str(event["nodes"]))) for event in run.events("started")]


def excluded(run: Run) -> str:
    found = re.search(r"ExcNodeList=(\S+)", run.cluster.run("scontrol", "show", "job", run.job))
    assert found
    return found[1]


def wait_attempt(run: Run, number: int) -> None:
    """Until its four ranks train."""

    def trains() -> bool:
        run.cluster.start_now(run.job)
        attempts = run.files.attempts()
        measured = run.files.metrics / f"{attempts[-1].name}.jsonl" if attempts else None
        return len(attempts) == number and measured is not None and measured.exists() and len(ranks_of(run)) == 4

    wait_for(f"attempt {number}", trains, 90, every_s=0.2, report=run.account)


def kill(run: Run, node: str, most: int) -> None:
    """So many of the ranks on a node, at once."""
    ranks, processes = ranks_of(run), processes_of(run)
    there = [pid for pid in ranks.values() if processes[pid]["SLURMD_NODENAME"] == node][:most]
    assert len(there) == most
    for pid in there:
        os.kill(pid, signal.SIGKILL)


def test_next_attempt_excludes_only_the_node_with_the_killed_ranks(cluster: Cluster, project: Path) -> None:
    with going(cluster, project, *DIGITS) as run:
        wait_attempt(run, 1)
        first = max(nodes_of(run)[0])
        kill(run, first, 1)  # the ranks on the other node report a lost connection
        wait_attempt(run, 2)
        assert excluded(run) == first, run.account()
        second = min(nodes_of(run)[1])
        kill(run, second, 2)
        wait_attempt(run, 3)
        assert excluded(run) == second, run.account()
        assert run.wait_end() == "COMPLETED", run.account()
        assert [second in nodes for nodes in nodes_of(run)[1:]] == [True, False], run.account()
        assert first not in nodes_of(run)[1], run.account()
        assert len(run.causes()) == 3, run.account()
        assert set(run.causes()[:2]) <= {"start", "crash"}, run.account()
        assert [str(each["error"]).split(":")[1] for each in run.events("failed")] == [f" {first}", f" {second}"]
        assert not any(attempt.error.exists() for attempt in run.files.attempts()), "no rank has an error of its own"


@pytest.mark.long
def test_node_with_a_dead_slurmd_is_recorded_as_node_lost_and_avoided(cluster: Cluster, project: Path) -> None:
    setup = "touch here; until [ -e go ]; do sleep 0.1; done"
    (project / "job.yaml").write_text(
        f"command: ['true']\nsnapshot: {{enabled: false}}\nlaunch: {{setup: '{setup}'}}\n"
    )
    with going(cluster, project, "job.yaml", *SIZE, "restart.max_crashes=0") as run:
        wait_for("the script", (project / "here").exists, 60, report=run.account)
        bad = max(expand(cluster.run("squeue", "-h", "-j", run.job, "-o", "%N").strip()))
        with without_slurmd(cluster, bad):
            (project / "go").touch()
            assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["node-lost", "done"], run.account()
        assert [bad in nodes for nodes in nodes_of(run)] == [True, False], run.account()
        assert run.files.attempts()[0].avoid.read_text().split() == [bad]
        assert f"avoids {bad}\n" in clusterdp(cluster, project, "status", "run").stdout
