"""A rank that is stopped for good: the run reports it, gives the attempt up as hung, and goes on in the next one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, submit
from tests.waiting import wait_for

pytestmark = [pytest.mark.timeout(360), pytest.mark.slow]


@pytest.fixture(params=["srun", pytest.param("torchrun", marks=pytest.mark.long)])
def run(cluster: Cluster, project: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    words = ("params.epochs=2", "params.step_delay_s=0.1", "checkpoint.every_s=2", f"run_dir={project}/run")
    words += ("restart.hang_after_s=10", "restart.on_hang=restart", f"launch.launcher={request.param}")
    run = submit(cluster, project, "configs/digits.yaml", *words)
    yield run
    cluster.run("scancel", run.job)


def rank_of(run: Run, number: int) -> int:
    """The process of a rank, by its command and its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        ours = b"clusterdp.train.worker" in words and str(run.files.path).encode() in words
        if ours and f"\0RANK={number}\0".encode() in b"\0" + environ and b"torchrun" not in words:
            return int(folder.name)
    return 0


def test_a_rank_that_is_stopped_ends_the_attempt_as_hung_and_the_next_one_finishes(run: Run) -> None:
    run.wait_step(10)
    (attempt,) = run.files.attempts()
    victim = wait_for("the process of rank 1", lambda: rank_of(run, 1), 10)
    os.kill(victim, signal.SIGSTOP)
    wait_for("the end as hung", attempt.hung.exists, 60, report=run.account)
    assert run.wait_end() == "COMPLETED", run.account()
    (hang,) = run.events("hang")
    assert hang["ranks"] == [1]
    assert attempt.hung.read_text().split() == [hang["nodes"]]
    assert "stopped (by SIGSTOP or a debugger)" in attempt.hang.read_text()
    assert not attempt.outcome.exists()
    assert run.causes() == ["hung", "done"], run.account()
    assert not Path(f"/proc/{victim}").exists()
