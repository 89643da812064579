"""Ranks that are killed, on real processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp import procfs
from clusterdp.rehearse.drills.copies import copy_damaged, restarted_from_memory
from clusterdp.rehearse.drills.losses import batch_host_lost, node_replaced, node_stopped, rank_killed
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rehearse.run_spec import Missed, NotPossibleHere
from clusterdp.rundir import RunDir, append_line
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")


def sleeper(**environ: str) -> subprocess.Popen[bytes]:
    """A process whose variables can be read, which is some moments after its exec."""
    process = subprocess.Popen(["sleep", "100"], env={**os.environ, **environ})
    wait_for("its variables", lambda: procfs.environ(process.pid).items() >= environ.items(), 10, every_s=0.001)
    return process


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker of torchrun's agent."""
    with sleeper(RANK="1", GROUP_RANK="0") as process:
        yield process
        process.kill()


@pytest.mark.parametrize("is_worker", [True, False])
def test_rank_killed_kills_torchrun_workers_directly_and_tasks_through_slurm(
    tmp_path: Path, worker: subprocess.Popen[bytes], is_worker: bool
) -> None:
    tasks: list[int] = []
    killed: list[int] = []
    pid = worker.pid if is_worker else os.getpid()
    scene = SimpleNamespace(
        job="7",
        dice=random.Random(0),
        live=SimpleNamespace(ranks=lambda fresh=False: {1: [pid]}),
        cluster=SimpleNamespace(ranks_are_here=True, kill_rank=lambda job, rank: tasks.append(rank)),
        kill=killed.extend,
        newest=lambda: RunDir(tmp_path).attempt("7.0"),
        wait_moment=lambda: None,
        mark=lambda: None,
        hit=lambda evidence, *causes, **more: None,
    )
    rank_killed(cast(Scene, scene))
    assert (killed, tasks) == (([worker.pid], []) if is_worker else ([], [1]))


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("is_named", [True, False])
def test_stopped_node_goes_on_with_or_without_its_name(tmp_path: Path, is_named: bool) -> None:
    run, hits, stopped = RunDir(tmp_path), list[str](), list[str]()
    tasks = [sleeper(SLURM_JOB_ID="7", SLURMD_NODENAME=node) for node in ("n1", "n2", "n2")]
    pids = [task.pid for task in tasks]

    def wait(what: str, look: Callable[[], bool], *limits: float, **more: float) -> None:
        if what in ("the ranks", "the keeper of the node"):
            assert look() is (what == "the ranks"), "the tasks of this test are no keepers"
            return
        wait_for("stopped tasks", lambda: [state_of(pid) for pid in pids[1:]] == ["T", "T"], 10)
        stopped.append(state_of(pids[0]))
        assert not look()
        if not is_named:
            raise Missed("no name")
        (run.events).mkdir()
        append_line(run.events / "7.0-batch.jsonl", {"time": 1.0, "event": "silent", "attempt": "7.0", "nodes": "n2"})
        assert look()

    scene = SimpleNamespace(
        job="7",
        run=run,
        dice=random.Random(0),
        live=SimpleNamespace(ranks=lambda fresh=False: {0: [pids[0]], 1: [pids[1]]}),
        cluster=SimpleNamespace(ranks_are_here=True),
        patience_s=1.0,
        wait=wait,
        wait_moment=lambda: None,
        hit=lambda evidence, *causes, **more: hits.append(evidence),
    )
    try:
        with nullcontext() if is_named else pytest.raises(Missed):
            node_stopped(cast(Scene, scene))
        assert stopped == ["S"], "the batch script is on n1"
        wait_for("running tasks", lambda: [state_of(pid) for pid in pids] == ["S", "S", "S"], 10)
        assert len(hits) == is_named
    finally:
        for task in tasks:
            task.kill()
            task.wait()


@pytest.mark.parametrize(("drill", "nodes"), [(node_replaced, ["n1"]), (node_replaced, []), (batch_host_lost, [])])
def test_node_drills_are_impossible_with_one_node_or_ranks_elsewhere(
    drill: Callable[[Scene], None], nodes: list[str]
) -> None:
    with sleeper(SLURMD_NODENAME="n1") as task:
        scene = SimpleNamespace(
            live=SimpleNamespace(ranks=lambda: {0: [task.pid]}),
            cluster=SimpleNamespace(ranks_are_here=bool(nodes), fail=pytest.fail),
            wait=lambda *given: None,
            patience_s=1.0,
        )
        try:
            with pytest.raises(NotPossibleHere):
                drill(cast(Scene, scene))
        finally:
            task.kill()


@pytest.mark.parametrize("drill", [restarted_from_memory, copy_damaged])
@pytest.mark.parametrize(("ours", "here"), [(False, True), (True, False)])
def test_drill_on_copies_does_not_apply_to_a_program_without_them(
    drill: Callable[[Scene], None], ours: bool, here: bool
) -> None:
    scene = SimpleNamespace(is_ours=ours, cluster=SimpleNamespace(ranks_are_here=here), wait=pytest.fail)
    with pytest.raises(NotPossibleHere, match="copies"):
        drill(cast(Scene, scene))
