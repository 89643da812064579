"""Programs that were not written with the fake in mind."""

import os
import sys
import time
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster

submitit = pytest.importorskip("submitit")


class Resumable:
    """Sleeps in its first life; its checkpoint makes the second one return."""

    def __call__(self, life: int = 0) -> str:
        if life:
            return f"life {life}"
        Path(os.environ["SLURM_SUBMIT_DIR"], "first-life").touch()
        time.sleep(120)
        return "nobody asked for a checkpoint"

    def checkpoint(self, life: int = 0) -> object:
        return submitit.helpers.DelayedSubmission(self, life + 1)


def rank_and_node(factor: int) -> tuple[int, str]:
    return factor * submitit.JobEnvironment().global_rank, os.environ["SLURMD_NODENAME"]


@pytest.fixture
def executor(shared_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv("PATH", shared_cluster.environ()["PATH"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    executor = submitit.AutoExecutor(folder=tmp_path / "%j")
    assert executor.cluster == "slurm"
    executor.update_parameters(timeout_min=5, slurm_partition="main")
    return executor


def test_submitit_gets_the_results_of_all_ranks(executor: object) -> None:
    executor.update_parameters(nodes=2, tasks_per_node=2)  # type: ignore[attr-defined]
    job = executor.submit(rank_and_node, 10)  # type: ignore[attr-defined]
    assert job.results() == [(0, "n1"), (10, "n1"), (20, "n2"), (30, "n2")]


def test_submitit_map_array_returns_the_result_of_each_element(executor: object) -> None:
    executor.update_parameters(slurm_array_parallelism=2)  # type: ignore[attr-defined]
    jobs = executor.map_array(abs, [-1, -2, -3])  # type: ignore[attr-defined]
    assert [job.result() for job in jobs] == [1, 2, 3]


def test_submitit_checkpoints_and_requeues_an_interrupted_job(executor: object, tmp_path: Path) -> None:
    job = executor.submit(Resumable())  # type: ignore[attr-defined]
    deadline = time.monotonic() + 60
    while not (tmp_path / "first-life").exists():
        assert time.monotonic() < deadline, "the job did not start"
        time.sleep(0.05)
    job._interrupt()
    assert job.result() == "life 1"
