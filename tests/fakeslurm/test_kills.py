"""kill -9 of the daemon again and again: every job runs, and none runs twice."""

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import processes

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
def test_daemon_killed_during_submissions_runs_every_job_exactly_once(tmp_path: Path, seed: int) -> None:
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


class Killer(threading.Thread):
    """Kills each daemon of a cluster some random moments after it came up, so many of them."""

    def __init__(self, cluster: FakeCluster, kills: int, seed: int):
        super().__init__(daemon=True)
        self._file, self._left, self._dice = cluster.folder / "daemon.pid", kills, random.Random(seed)

    def run(self) -> None:
        last = 0
        while self._left:
            try:
                pid = int(self._file.read_text())
            except (OSError, ValueError):  # just being written
                pid = last
            if pid == last or not processes.alive(pid):
                time.sleep(0.01)
                continue
            time.sleep(self._dice.random() ** 2)  # more often early, while it looks after what the one before it left
            os.kill(pid, signal.SIGKILL)
            self._left -= 1
            last = pid


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_daemon_killed_200_times_at_random_moments_runs_every_job_exactly_once(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(SCRIPT)
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk, jobs, killer = Desk(cluster, tmp_path), 0, Killer(cluster, 200, seed=1)
    try:
        killer.start()
        while killer.is_alive():
            if len(desk.say("squeue -h -o %i").split()) < 6:
                desk.say(f"sbatch --output=said.{jobs} job.sh {jobs}")
                jobs += 1
        desk.until(lambda: desk.say("squeue -h") == "", "the end of all jobs", within_s=120)
        assert Counter(desk.say("squeue -h -t all -o %T").splitlines()) == {"COMPLETED": jobs}
        ran = Counter((tmp_path / "ran").read_text().splitlines())
        expected = {
            f"{what} {i}": times for i in range(jobs) for what, times in (("start", 1), ("task", 2), ("end", 1))
        }
        assert ran == expected, [path.read_text() for path in tmp_path.glob("said.*") if path.stat().st_size]
    finally:
        cluster.down()
