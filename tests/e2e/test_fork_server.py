"""Ranks that a node's fork server has forked, on a cluster: their signals, ends and logs are those of their tasks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp import procfs
from tests.e2e.cluster import Cluster
from tests.e2e.processes import ranks_of
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)
Start = Callable[..., Run]
PROGRAM = """
import os, signal
def main(job, how: str = ""):
    signal.signal(signal.SIGUSR1, lambda number, frame: print("USR1", flush=True))
    print("forked by", os.getppid(), os.environ["SLURM_PROCID"], flush=True)
    if how == "exits" and job.rank == 1:
        os._exit(7)
    if how != "ends":
        while True:
            signal.pause()
"""
CONFIG = """
entry: program:main
resources: {partition: main, nodes: 1, tasks_per_node: 2, time: 10}
restart: {in_place: false, requeue: false}
launch: {python: %s}
"""


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Start:
    (project / "program.py").write_text(PROGRAM)
    (project / "job.yaml").write_text(CONFIG % cluster.python)
    return lambda *words: submit(cluster, project, "job.yaml", f"run_dir={project}/run", *words)


def text(run: Run, pattern: str) -> str:
    return "".join(file.read_text() for file in sorted(run.files.path.glob(pattern)))


def lines(run: Run) -> list[list[str]]:
    """The first line of each rank's program: the process id of its parent, and its task's number."""
    found = text(run, "attempts/*/logs/node-*.log").splitlines()
    return [line.split("forked by ")[1].split() for line in found if "forked by " in line]


def test_ranks_of_a_node_are_forked_from_one_process(start: Start) -> None:
    run = start("params.how=ends")
    assert run.wait_end() == "COMPLETED", run.account()
    assert sorted(rank for _, rank in lines(run)) == ["0", "1"] and len({parent for parent, _ in lines(run)}) == 1


@pytest.mark.slow
def test_signals_and_kills_of_slurm_reach_forked_ranks(start: Start, cluster: Cluster) -> None:
    run = start()
    wait_for("the ranks", lambda: len(lines(run)) == 2, 60, report=run.account)
    ranks = ranks_of(run)
    cluster.run("scancel", "--signal=USR1", f"{run.job}.0")
    wait_for("the signal", lambda: text(run, "attempts/*/logs/node-*.log").count("USR1") >= 2, 30, report=run.account)
    cluster.run("scancel", run.job)
    wait_for("their end", lambda: not any(map(procfs.is_alive, ranks.values())), 30, report=run.account)


@pytest.mark.slow
def test_exit_code_and_signal_of_a_forked_rank_are_its_tasks(start: Start) -> None:
    run = start("params.how=exits")
    run.wait_end()
    assert "task 1: Exited with exit code 7" in text(run, "slurm-*.out"), run.account()


@pytest.mark.slow
def test_killed_forked_rank_ends_its_task_as_killed(start: Start) -> None:
    run = start()
    wait_for("the ranks", lambda: len(lines(run)) == 2, 60, report=run.account)
    os.kill(ranks_of(run)[1], signal.SIGKILL)
    run.wait_end()
    assert "task 1: Killed" in text(run, "slurm-*.out"), run.account()
