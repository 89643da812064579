"""The same script, program and batch program as those of four ranks, with 64."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.processes import ranks_of
from tests.e2e.run import Run, clusterdp, submit
from tests.scale.conftest import NODES, CountedCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

LIMIT_S = 500


@pytest.fixture
def start(large_cluster: Cluster, forking: Path, project: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []
    shutil.copy(Path(__file__).parent / "program.py", project)
    (project / "program.yaml").write_text("entry: program:main\n")

    def start(name: str, ranks: int, *words: str) -> Run:
        sizes = (f"resources.nodes={NODES}", f"resources.tasks_per_node={ranks // NODES}", "resources.partition=low")
        fork = (f"launch.python={forking}", "restart.warm_after_s=null")
        words = (f"run_dir={project}/{name}", *sizes, *fork, *words)
        started.append(submit(large_cluster, project, "program.yaml", *words))
        return started[-1]

    yield start
    for run in started:
        large_cluster.run("scancel", run.job)


@pytest.mark.parametrize("ranks", [64])  # 256 train, too, at 13 s a step on two cores
def test_many_ranks_resume_exactly_after_a_crash_and_a_preemption(
    start: Callable[..., Run], large_cluster: CountedCluster, project: Path, ranks: int
) -> None:
    twin = start("twin", ranks)
    assert twin.wait_end(LIMIT_S) == "COMPLETED", twin.account()
    run = start("run", ranks, "checkpoint.every_steps=5")
    run.wait_step(9, LIMIT_S)
    os.kill(ranks_of(run)[ranks // 2], signal.SIGKILL)
    run.wait_step(15, LIMIT_S)
    large_cluster.preempt(run.job)
    assert run.wait_end(LIMIT_S) == "COMPLETED", run.account()
    assert run.causes() == ["crash", "preempted", "done"]
    assert run.digest() == twin.digest()
    assert large_cluster.calls().keys() <= {"", "0"}
    errors = clusterdp(large_cluster, project, "logs", "twin", "--errors").stdout
    assert errors == "==> nothing looks like an error in attempt 1 <==\n"
