"""Hundreds of jobs at once, or too many for the descriptors that there are: all start, sooner or later."""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import processes
from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.model import JobRecord, Model, Step
from clusterdp.fakeslurm.core.orders import Order
from clusterdp.fakeslurm.core.paths import Paths
from clusterdp.fakeslurm.core.shape import Shape, User
from clusterdp.fakeslurm.slurmctld.controller import Controller
from clusterdp.fakeslurm.slurmctld.journal import Journal
from clusterdp.fakeslurm.slurmdbd.accounting import Accounting

from .conftest import Desk

ASK = """
import socket, sys
from clusterdp.fakeslurm.slurmstepd.forkserver import ForkServer
from clusterdp.fakeslurm.core.step_plan import ComponentPlan, StepPlan, StreamTarget

server, asked, forked, lines = ForkServer(sys.argv[1]), 600, 0, []
none = StreamTarget("null")
part = ComponentPlan(1, ("true",), {}, "/", none, none, None)
for job in range(asked):
    ours, theirs = socket.socketpair()
    lines.append(ours)
    server.fork_stepd(StepPlan(job, "batch", 0, "batch", ("n1",), (), (part,), 0), theirs, None)
    theirs.close()
while forked < asked:
    forked += len(server.forked())
print(forked)
"""
FEW = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
subprocess.run([sys.executable, "-m", "clusterdp", "fake", "up", "--quick", "--dir", sys.argv[1]], check=True)
"""


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.getcwd()}


def test_fork_server_forks_600_processes_before_any_pid_is_read(tmp_path: Path) -> None:
    words = [sys.executable, "-c", ASK, str(tmp_path)]
    done = subprocess.run(words, env=environ(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "600\n", done.stderr


def test_array_elements_started_in_one_scheduling_pass_all_complete(desk: Desk) -> None:
    job = desk.say("sbatch --parsable --array=0-31 --output=/dev/null --wrap=true")
    desk.cluster.wait(job, "COMPLETED")


class Clumsy:
    """A runner that starts no job at the first try."""

    def __init__(self) -> None:
        self.tried: set[int] = set()
        self.started: list[int] = []

    def start_batch(self, job: JobRecord, step: Step) -> None:
        if job.id not in self.tried:
            self.tried.add(job.id)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.started.append(job.id)

    def order(self, job: JobRecord, step: Step, order: Order) -> None: ...

    def later(self, seconds: float, action: Callable[[], None]) -> None: ...

    def job_changed(self) -> None: ...


def test_job_failing_with_too_many_open_files_is_started_on_retry(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape, runner, paths = Shape.simple(), Clumsy(), Paths(tmp_path)
    paths.make()
    controller = Controller(shape, tmp_path, Model.of(shape, 1.0), Accounting(), Journal(paths.journal), User.me())
    controller.runner = runner
    jobs = [controller.submit(JobDesc(f"job{i}", "main"), None, b"#!/bin/sh\n", {}).id for i in range(3)]
    controller.wake()
    controller.settle()
    assert (runner.started, runner.tried) == ([], set(jobs))
    controller.settle()
    assert runner.started == jobs
    assert capfd.readouterr().err == f"job {jobs[0]} cannot start: Too many open files. It is tried again.\n"


@pytest.mark.skipif(not processes.LINUX, reason="looks into /proc")
def test_cluster_out_of_file_descriptors_takes_commands_again_after_clients_disconnect(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True)
    subprocess.run([sys.executable, "-c", FEW, str(cluster.folder)], env=environ(), check=True, timeout=60)
    try:
        desk, opened = Desk(cluster, tmp_path), Path(f"/proc/{(cluster.folder / 'daemon.pid').read_text()}/fd")
        desk.say("squeue")
        with ExitStack() as lines:
            for _ in range(40):
                lines.enter_context(socket.socket(socket.AF_UNIX)).connect(str(cluster.folder / "socket"))
            desk.until(lambda: len(list(opened.iterdir())) == 40, "the lack of descriptors")
        assert desk.say("squeue -h") == ""
    finally:
        cluster.down()
