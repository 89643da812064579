"""kill -9 of the daemon again and again: every job runs, and none runs twice."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster

from .conftest import Desk

JOBS, KILLS = 30, 12
SCRIPT = """#!/bin/bash
export me=$1
echo start $me >> ran
srun -n2 -N1 --overcommit bash -c 'sleep 0.$((RANDOM % 9)); echo task $me >> ran'
echo end $me >> ran
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_job_runs_once_however_often_the_daemon_is_killed(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    (tmp_path / "job.sh").write_text(SCRIPT)
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk, kills = Desk(cluster, tmp_path), 0
    try:
        for i in range(JOBS):
            desk.say(f"sbatch --output=/dev/null job.sh {i}")
            if dice.random() < KILLS / JOBS:
                os.kill(int((cluster.folder / "daemon.pid").read_text()), signal.SIGKILL)
                kills += 1
        desk.until(lambda: desk.say("squeue -h") == "", "the end of all jobs", within_s=90)
        assert kills
        assert Counter(desk.say("squeue -h -t all -o %T").splitlines()) == {"COMPLETED": JOBS}
        ran = Counter((tmp_path / "ran").read_text().splitlines())
        assert ran == {
            f"{what} {i}": times for i in range(JOBS) for what, times in (("start", 1), ("task", 2), ("end", 1))
        }
    finally:
        cluster.down()
