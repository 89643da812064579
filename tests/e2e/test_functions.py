"""submit_function() and submit_map(): a function as a job, its result and its error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterdp
from clusterdp.errors import ConfigError, EntryError, RunError
from clusterdp.functions import FunctionError, FunctionJob
from clusterdp.plainfile import read_own
from tests.e2e.cluster import Cluster
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)
ONE: dict[str, Any] = {"resources": {"time": 5, "partition": "main"}, "config": {"snapshot": {"enabled": False}}}


class Odd(Exception):
    """Its own arguments do not make it again."""

    def __init__(self, one: int, two: int):
        super().__init__(f"{one} and {two}")


@pytest.fixture
def here(cluster: Cluster, project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(project)
    yield project
    cluster.ask("scancel", "--me")


def test_result_is_the_return_value_on_rank_0(here: Path) -> None:
    factor = 3

    def ranked(one: int, *, more: int) -> tuple[str, int]:
        return os.environ["RANK"], factor * one + more

    sizes = {**ONE["resources"], "tasks_per_node": 2}
    job = clusterdp.submit_function(ranked, 4, more=1, resources=sizes, config=ONE["config"])
    assert job.result() == ("0", 13)
    assert job.result() == ("0", 13) and job.state == "COMPLETED"
    assert job.run.function.stat().st_mode & 0o777 == job.run.result.stat().st_mode & 0o777 == 0o600


def test_map_is_one_array_with_a_result_for_each_call(here: Path) -> None:
    jobs = clusterdp.submit_map(lambda x, y: x * y, [1, 2, 3], iter([4, 5, 6, 7]), **ONE)
    assert [job.result() for job in jobs] == [4, 10, 18]
    assert len({job.id.partition("_")[0] for job in jobs}) == 1 and jobs[2].id.endswith("_2")
    assert clusterdp.submit_map(abs, [], **ONE) == []


def test_error_of_a_function_is_raised_with_its_traceback(here: Path) -> None:
    def fails() -> None:
        raise ZeroDivisionError("by nothing")

    def is_odd() -> None:
        raise Odd(1, 2)

    first, second = (clusterdp.submit_function(each, **ONE) for each in (fails, is_odd))
    with pytest.raises(ZeroDivisionError, match="by nothing") as error:
        first.result()
    assert isinstance(error.value.__cause__, FunctionError) and "in fails" in str(error.value.__cause__)
    with pytest.raises(RunError, match="Odd: 1 and 2"):
        second.result()
    assert first.state == "FAILED" and len(first.run.attempts()) == 1


def test_preempted_function_resumes_and_returns_its_result(cluster: Cluster, here: Path) -> None:
    def trains(steps: int) -> tuple[int, str]:
        import time

        import torch

        from clusterdp.train import own_job

        job = own_job()
        model = torch.nn.Linear(1, 1)
        loader = job.loader(torch.utils.data.TensorDataset(torch.zeros(steps, 1)), batch_size=1)
        for _ in job.loop(loader, {"model": model}, epochs=1):
            time.sleep(0.1)
        return job.step, os.environ["CLUSTERDP_ATTEMPT"]

    job = clusterdp.submit_function(trains, 60, **ONE)
    wait_for("steps", lambda: any(job.run.metrics.glob("*.jsonl")), 60, report=job.logs)
    cluster.run("scontrol", "requeue", job.id)
    cluster.start_now(job.id)
    steps, attempt = job.result()
    assert steps == 60 and attempt == f"{job.id}.1"
    assert "resumed at step" in job.logs()


def test_killed_function_has_no_result_and_a_reason(cluster: Cluster, here: Path) -> None:
    job = clusterdp.submit_function(os._exit, 3, **ONE)
    with pytest.raises(RunError, match="it is FAILED, and has no result"):
        job.result()


def test_unpicklable_argument_is_refused_before_the_submit(here: Path) -> None:
    with pytest.raises(EntryError, match="cannot be sent to the ranks"):
        clusterdp.submit_function(print, sys.stdout, **ONE)
    with pytest.raises(ConfigError, match="config: params is set by clusterdp"):
        clusterdp.submit_function(print, config={"params": {}})
    with pytest.raises(ConfigError, match="cluster: 'mars' is none of auto, slurm, local"):
        clusterdp.submit_function(print, cluster="mars")
    assert not list(here.glob("runs/*"))


def test_file_of_somebody_else_is_never_unpickled(here: Path) -> None:
    path = here / "x.pkl"
    path.write_bytes(b"mine")
    path.chmod(0o600)
    assert read_own(path) == b"mine"
    path.chmod(0o620)
    with pytest.raises(PermissionError):
        read_own(path)
    path.chmod(0o600)
    (here / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_own(here / "link")
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
        with pytest.raises(PermissionError):
            read_own(path)


def test_result_written_by_others_raises_an_error(here: Path) -> None:
    job = clusterdp.submit_function(abs, -1, **ONE)
    assert isinstance(job, FunctionJob) and job.result() == 1
    job.run.result.chmod(0o666)
    with pytest.raises(RunError, match="cannot be read here: PermissionError"):
        job.result()


def test_local_cluster_of_a_script_ends_with_it(project: Path) -> None:
    lines = """
import os, clusterdp
job = clusterdp.submit_function(len, "abc", cluster="local", config={"snapshot": {"enabled": False}})
print(job.result(), os.environ["SLURM_CONF"])
"""
    (project / "go.py").write_text(lines)
    done = subprocess.run([sys.executable, "go.py"], cwd=project, capture_output=True, text=True)
    result, conf = done.stdout.split()
    assert (result, done.returncode) == ("3", 0), done.stderr
    assert not Path(conf).parent.joinpath("up").exists()
