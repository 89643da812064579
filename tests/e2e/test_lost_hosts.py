"""A node that is silent or lost, with a spare node or without, and the node of a batch script."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from clusterdp.batch.nodes.keeper import HELD
from tests.e2e.cluster import Cluster
from tests.e2e.processes import copies_of, keepers_on, lost, nodes_of, processes_on, skip_without_keepers
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(360)

Start = Callable[..., Run]
THREE_RANKS = ("resources.nodes=3", "resources.tasks_per_node=1", "params.epochs=1")


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Start]:
    """Submits the digits in slow motion."""
    started: list[Run] = []

    def start(*words: str) -> Run:
        words = ("checkpoint.every_s=1", "params.step_delay_s=0.1", f"run_dir={project}/run", *words)
        run = submit(cluster, project, "configs/digits.yaml", *words)
        started.append(run)
        run.wait_step(10)
        wait_for("the keepers", lambda: keepers_on(run) == {*nodes_of(run)}, 30, report=run.account)
        return run

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@pytest.fixture(scope="module")
def expected_digest(fake_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run without spare nodes, which is the same on all clusters."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run = submit(fake_cluster, folder, "configs/digits.yaml", *THREE_RANKS, f"run_dir={folder}/run")
    assert run.wait_end() == "COMPLETED", run.account()
    return run.digest()


@pytest.mark.slow
@pytest.mark.long
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


@pytest.mark.slow
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


@pytest.mark.slow  # here; in test-slurm it runs all the same
def test_spare_node_takes_the_place_of_a_silent_one(cluster: Cluster, start: Start, expected_digest: str) -> None:
    skip_without_keepers(cluster)
    run = start("resources.spare_nodes=1", "launch.preflight=true", "params.step_delay_s=0.2", *THREE_RANKS)
    first, silent, third, spare = nodes_of(run)
    pids = processes_on(run, silent)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for("the spare node", lambda: run.events("restarted"), 60, report=run.account)
        run.wait_step(run.step() + 10)
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    _check_swap(run, silent, f"{first},{spare},{third}", expected_digest)  # in an order that is not Slurm's


@pytest.mark.slow  # 40 s; the silent one runs in test-slurm
@pytest.mark.long
def test_spare_node_takes_the_place_of_a_lost_one(cluster: Cluster, start: Start, expected_digest: str) -> None:
    skip_without_keepers(cluster)
    saving = ("checkpoint.every_s=null", "checkpoint.memory_s=0.3")
    run = start("resources.spare_nodes=1", "params.step_delay_s=0.2", *saving, *THREE_RANKS)
    first, second, gone, spare = nodes_of(run)
    wait_for("a copy", lambda: any(HELD in name for name in copies_of(run)), 30, report=run.account)
    run.wait_step(run.step() + 5)
    with lost(run, gone):
        wait_for("the spare node", lambda: run.events("restarted"), 60, report=run.account)
        _check_swap(run, gone, f"{first},{second},{spare}", expected_digest)
    (restored,) = run.events("restored")
    assert restored["memory"], run.account()


def _check_swap(run: Run, gone: str, nodes: str, digest: str) -> None:
    """Requires that the run has gone on in its allocation on these nodes, to the bits of the undisturbed one."""
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["node-lost", "done"], run.account()
    assert run.events("started")[-1]["nodes"] == nodes, run.account()
    assert run.files.attempt(f"{run.job}.0").avoid.read_text().split() == [gone]
    assert run.digest() == digest, run.account()
