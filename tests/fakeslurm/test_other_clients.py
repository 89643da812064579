"""Clients that people install themselves, each by its own public way; a client that is not installed is skipped.

`pip install simple_slurm psij-python dask-jobqueue parsl` runs them all.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.state import JobState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def client(name: str, package: str) -> Any:
    return pytest.importorskip(name, reason=f"pip install {package}")


@pytest.fixture
def cluster(shared_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Its commands are on PATH, as a client looks for them."""
    environ = shared_cluster.environ()
    monkeypatch.setenv("PATH", environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)
    return shared_cluster


def test_simple_slurm_submits_lists_and_cancels_jobs(cluster: FakeCluster, tmp_path: Path) -> None:
    slurm = client("simple_slurm", "simple_slurm").Slurm
    array = slurm(array="3-9:3", cpus_per_task=2, output=f"{tmp_path}/%A_%a.out").sbatch("echo $SLURM_ARRAY_TASK_ID")
    sleeper = slurm(job_name="sleeper", output="/dev/null")
    job = sleeper.sbatch("sleep 300")
    after = slurm(dependency={"afterok": array}, output="/dev/null").sbatch("true")
    cluster.wait(str(job), JobState.RUNNING)
    cluster.wait(str(after), JobState.COMPLETED)
    assert sorted(path.read_text() for path in tmp_path.glob("*.out")) == ["3\n", "6\n", "9\n"]
    sleeper.squeue.update_squeue()
    assert sleeper.squeue.jobs[job]["NAME"] == "sleeper"
    sleeper.scancel.cancel_job(job)
    cluster.wait(str(job), JobState.CANCELLED)


def test_psij_reports_the_final_state_and_exit_code_of_jobs(cluster: FakeCluster, tmp_path: Path) -> None:
    psij = client("psij", "psij-python")
    executor = psij.JobExecutor.get_instance("slurm")

    def submitted(*words: str) -> Any:
        attributes = psij.JobAttributes(duration=timedelta(minutes=5), queue_name="main")
        one = psij.ResourceSpecV1(node_count=1, processes_per_node=1, cpu_cores_per_process=1)
        spec = psij.JobSpec(executable=words[0], arguments=list(words[1:]), attributes=attributes, resources=one)
        spec.stdout_path = tmp_path / f"{Path(words[0]).name}.out"
        job = psij.Job(spec)
        executor.submit(job)
        return job

    good, bad, long = submitted("/bin/echo", "hello"), submitted("/bin/false"), submitted("/bin/sleep", "300")
    cluster.wait(long.native_id, JobState.RUNNING)
    long.cancel()
    ends = [job.wait(timedelta(seconds=120)) for job in (good, bad, long)]
    assert [end.state.name for end in ends] == ["COMPLETED", "FAILED", "CANCELED"]
    assert [end.exit_code for end in ends[:2]] == [0, 1]
    assert good.spec.stdout_path.read_text() == "hello\n"


def test_dask_jobqueue_workers_connect_to_their_scheduler(cluster: FakeCluster, tmp_path: Path) -> None:
    jobqueue = client("dask_jobqueue", "dask-jobqueue")
    distributed = client("distributed", "distributed")
    with jobqueue.SLURMCluster(
        cores=1,
        memory="500MB",
        queue="main",
        walltime="00:10:00",
        interface="lo",
        local_directory=str(tmp_path),
        log_directory=str(tmp_path),
        scheduler_options={"dashboard_address": None},
    ) as workers:
        workers.scale(jobs=2)
        with distributed.Client(workers) as home:
            home.wait_for_workers(2, timeout=120)
            assert home.submit(sum, [1, 2, 3]).result(timeout=60) == 6


def test_parsl_slurm_provider_submits_cancels_and_sees_completed_blocks(cluster: FakeCluster, tmp_path: Path) -> None:
    providers = client("parsl.providers", "parsl")
    parsl = client("parsl", "parsl")
    provider = providers.SlurmProvider(
        partition="main", walltime="00:05:00", init_blocks=0, exclusive=False, launcher=parsl.launchers.SrunLauncher()
    )
    provider.script_dir = str(tmp_path)
    short, long = provider.submit("echo $SLURM_PROCID", 1), provider.submit("sleep 300", 1)
    cluster.wait(short, JobState.COMPLETED)
    cluster.wait(long, JobState.RUNNING)
    assert provider.cancel([long]) == [True]
    cluster.wait(long, JobState.CANCELLED)

    def seen() -> str:
        return str(provider.status([short])[0].state.name)

    deadline = time.monotonic() + 60
    while seen() != "COMPLETED":
        assert time.monotonic() < deadline, seen()
        time.sleep(0.2)
