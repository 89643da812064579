"""Ranks that are killed, on real processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from clusterdp.rehearse.drills.losses import rank_killed
from clusterdp.rehearse.drills.scene import Scene
from clusterdp.rundir import RunDir

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker of torchrun's agent."""
    with subprocess.Popen(["sleep", "100"], env={**os.environ, "RANK": "1", "GROUP_RANK": "0"}) as process:
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
        hit=lambda evidence, *causes, **more: None,
    )
    rank_killed(cast(Scene, scene))
    assert (killed, tasks) == (([worker.pid], []) if is_worker else ([], [1]))
