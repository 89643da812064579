"""--no-kill where the node of the batch script is lost: the job goes on with nobody in charge, as on a real Slurm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from tests.fakeslurm.conftest import Desk, impatient

SCRIPT = "srun bash -c '> began.$SLURM_PROCID; sleep 300'\necho went on\n"


@pytest.fixture
def headless(tmp_path: Path) -> Iterator[tuple[Desk, str]]:
    """A job of three nodes that has lost its first one."""
    with FakeCluster(shape=impatient(accounting_lag_s=0.1)) as cluster:
        desk = Desk(cluster, tmp_path)
        job = desk.submit("--no-kill", "-N3", "-n3", script=SCRIPT)
        desk.until(lambda: len(list(tmp_path.glob("began.*"))) == 3, "the step")
        desk.say("scontrol update NodeName=n1 State=DOWN Reason=test")
        desk.until(lambda: not desk.say(f"squeue -h -s -j {job} -o %i"), "the end of its steps")
        yield desk, job


def test_job_with_no_kill_keeps_running_after_losing_its_batch_node(headless: tuple[Desk, str]) -> None:
    desk, job = headless
    assert desk.say(f"squeue -h -j {job} -o '%T %r %D %N %B'") == "RUNNING None 2 n[2-3] n1"
    assert desk.field(job, "Restarts") == "0"
    assert "went on" not in desk.output(job)
    rows = [f"{job}|RESIZING|n[1-3]", f"{job}.batch|CANCELLED|n1", f"{job}.0|RESIZING|n[1-3]", f"{job}|RUNNING|n[2-3]"]
    desk.until(lambda: desk.say(f"sacct -n -P -D -j {job} -o JobID,State,NodeList").splitlines() == rows, "accounting")
    said = desk.say(f"srun --jobid={job} --overlap -l bash -c 'echo $SLURMD_NODENAME'")
    assert sorted(said.splitlines()) == ["0: n2", "1: n3"]
    desk.say(f"scancel {job}")
    desk.until(lambda: desk.field(job, "JobState") == "CANCELLED", "the end")
