"""kill -9 of Slurm's daemons on the job's node, on a real Slurm. The fake has no slurmd, and tasks of a slurmstepd that
is killed die with it there; on a real node they go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import command_of, daemons, parent_of, ranks_of
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(360), pytest.mark.slurm, pytest.mark.slow, pytest.mark.long]
DIGITS = ("configs/digits.yaml", "resources.nodes=1", "checkpoint.every_s=2", "params.step_delay_s=0.1")

Start = Callable[..., Run]


@pytest.fixture
def start(real_cluster: Cluster, project: Path) -> Iterator[Start]:
    """Submits the digits on two ranks of one node, which train for half a minute."""
    started: list[Run] = []

    def start(*words: str, cluster: Cluster = real_cluster) -> Run:
        run = submit(cluster, project, *DIGITS, "params.epochs=3", f"run_dir={project}/run", *words)
        started.append(run)
        run.wait_step(10)
        return run

    yield start
    for run in started:
        real_cluster.run("scancel", run.job)


def slurmd_of(run: Run) -> list[int]:
    """One, or none while it is down."""
    return daemons(
        run.cluster, "slurmd", "-D", "-N", run.cluster.run("squeue", "-h", "-j", run.job, "-o", "%N").strip()
    )


def test_attempt_continues_over_a_kill_and_restart_of_slurmd(start: Start) -> None:
    run = start()
    (before,) = slurmd_of(run)
    os.kill(before, signal.SIGKILL)
    wait_for("it to be back", lambda: slurmd_of(run) not in ([], [before]), 30)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["done"], run.account()


def test_job_on_a_stopped_slurmd_is_requeued_and_its_old_ranks_end(start: Start) -> None:
    run = start("params.epochs=6")
    (slurmd,), (first,) = slurmd_of(run), run.files.attempts()
    os.kill(slurmd, signal.SIGSTOP)
    try:
        wait_for("its requeue", lambda: run.cluster.state(run.job)[0] != "RUNNING", 60, report=run.account)
        assert ranks_of(run), "they are cut off, and alive"
        assert run.wait_end() == "COMPLETED", run.account()
    finally:
        os.kill(slurmd, signal.SIGCONT)
    assert run.causes() == ["lost", "done"], run.account()  # no slurmstepd hears of it, to write that down
    old, new = (event["nodes"] for event in run.events("started"))
    assert old != new, run.account()
    assert first.avoid.read_text().split() == [old]
    wait_for("the end of the old ranks", lambda: not ranks_of(run), 60)
    wait_for(
        "the node to be back", lambda: run.cluster.run("sinfo", "-h", "-n", old, "-o", "%t").split()[0] == "idle", 60
    )


def test_run_finishes_although_the_slurmstepd_of_its_ranks_is_killed(
    start: Start, real_cluster: Cluster, project: Path
) -> None:
    """srun hears of it when the node registers with Slurm again, if at all. Five minutes are as many seconds here."""
    (project / "bin").mkdir()
    (project / "bin/sleep").write_text('#!/bin/bash\nexec /bin/sleep "${1/#300/5}"\n')
    (project / "bin/sleep").chmod(0o755)
    path = f"{project}/bin:{real_cluster.variables['PATH']}"
    run = start(cluster=replace(real_cluster, variables={**real_cluster.variables, "PATH": path}))
    ranks = sorted(ranks_of(run).values())
    stepd = parent_of(ranks[0])
    assert command_of(stepd)[0] == f"slurmstepd: [{run.job}.0]"
    os.kill(stepd, signal.SIGKILL)
    wait_for("another step", lambda: run.step() > 30, 60, report=run.account)
    assert sorted(ranks_of(run).values()) == ranks
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["done"], run.account()
    (output,) = run.files.path.glob("slurm-*.out")
    said = output.read_text()
    assert "srun has not ended for 5 minutes. Ending it." in said or "missing step on node" in said


def test_run_finishes_although_the_slurmstepd_of_its_script_is_killed(start: Start) -> None:
    """From the node's next registration: in half an hour, or when its slurmd starts again. Slurm takes that for the
    failure of a node, and the next attempt finds that the run is done."""
    run = start()
    (stepd,) = daemons(run.cluster, f"slurmstepd: [{run.job}.batch]")
    os.kill(stepd, signal.SIGKILL)
    wait_for("the end of the run", lambda: bool(run.events("finished")), 90, report=run.account)
    wait_for("the end of its ranks", lambda: not ranks_of(run), 30)
    assert run.cluster.state(run.job)[0] == "RUNNING"

    def is_over() -> bool:
        state = run.cluster.state(run.job)[0]
        if state == "RUNNING" and len(run.files.attempts()) == 1:
            for slurmd in slurmd_of(run):
                os.kill(slurmd, signal.SIGKILL)
        elif state == "PENDING":
            run.cluster.start_now(run.job)
        return state == "COMPLETED"

    wait_for("the end of the job", is_over, 90, every_s=11, report=run.account)  # BatchStartTimeout is 10 s
    assert run.causes() == ["done"], run.account()
    assert list(run.all_causes().values()) == ["done", "done"], run.account()
