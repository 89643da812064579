"""Ranks that wait for the next attempt with torch loaded, and become its ranks after a fault."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterdp.batch.files.rank_logs import text_of
from tests.e2e.cluster import Cluster
from tests.e2e.processes import ranks_of, steps_of, waiting_of
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(360)

Start = Callable[..., Run]
SHORT = "params.epochs=3"


@pytest.fixture
def start(cluster: Cluster, project: Path) -> Iterator[Start]:
    """Submits the digits in slow motion, and waits for the ranks in reserve."""
    if cluster.run("srun", "--version").split()[-1] < "22.05":
        pytest.skip("a step with --overlap shares CPUs only in this release")
    started: list[Run] = []

    def start(*words: str) -> Run:
        words = (
            "restart.warm_after_s=1",
            "checkpoint.every_s=2",
            "params.step_delay_s=0.1",
            f"run_dir={project}/run",
            *words,
        )
        run = submit(cluster, project, "configs/digits.yaml", *words)
        started.append(run)
        run.wait_step(10)
        wait_for("the ranks in reserve", lambda: len(waiting_of(run)) == 4, 60, report=run.account)
        return run

    yield start
    for run in started:
        cluster.run("scancel", run.job)


@pytest.mark.slow
@pytest.mark.long
def test_ranks_in_reserve_take_over_bit_for_bit(start: Start, fake_cluster: Cluster, tmp_path: Path) -> None:
    twin = submit(fake_cluster, tmp_path, "configs/digits.yaml", SHORT, f"run_dir={tmp_path}/twin")
    assert twin.wait_end() == "COMPLETED", twin.account()
    run = start(SHORT)
    _kill_when_saved(run, 0)
    assert [event["attempt"] for event in run.events("warm")] == [f"{run.job}.0.1"]
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["crash", "done"], run.account()
    assert run.digest() == twin.digest(), run.account()
    assert not waiting_of(run)
    for attempt in run.files.attempts():
        assert not (attempt.path / "next").exists()
        assert all(text_of(str(attempt.logs), rank) for rank in range(4)), run.account()


@pytest.mark.slow
@pytest.mark.long
def test_each_attempt_has_ranks_in_reserve(start: Start) -> None:
    run = start()
    for life in range(2):
        _kill_when_saved(run, life)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["crash", "crash", "done"], run.account()


def _kill_when_saved(run: Run, life: int) -> None:
    """Kills a rank, and waits for the ranks in reserve to take over. life: the present attempt."""
    name = f"{run.job}.0" + (f".{life}" if life else "")
    wait_for("a save", lambda: name in [event["attempt"] for event in run.events("saved")], 60, report=run.account)
    wait_for("the ranks in reserve", lambda: len(waiting_of(run)) == 4, 60, report=run.account)
    reserve = steps_of(run, waiting_of(run).values())
    os.kill(ranks_of(run)[2], signal.SIGKILL)
    wait_for("the next attempt", lambda: _step_of_ranks(run) == reserve, 60, report=run.account)


def _step_of_ranks(run: Run) -> set[str]:
    ranks = ranks_of(run)
    return steps_of(run, ranks.values()) if len(ranks) == 4 else set()


@pytest.mark.slow
@pytest.mark.long
def test_dead_rank_in_reserve_leads_to_a_cold_start(start: Start) -> None:
    run = start("params.epochs=4")
    os.kill(waiting_of(run)[3], signal.SIGKILL)
    os.kill(ranks_of(run)[2], signal.SIGKILL)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["crash", "done"], run.account()
    assert not run.events("warm"), run.account()


@pytest.mark.slow
@pytest.mark.long
def test_preempted_job_ends_its_ranks_in_reserve(cluster: Cluster, start: Start) -> None:
    run = start("params.epochs=4", "resources.partition=low")
    cluster.preempt(run.job)
    assert run.wait_end() == "COMPLETED", run.account()
    assert not run.events("warm"), run.account()
    assert not waiting_of(run)
