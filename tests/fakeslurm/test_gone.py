"""Who is killed, or refused, at an awkward moment leaves no step and no job behind."""

import os
import signal
import socket

import pytest

from clusterdp.fakeslurm import wire

from .conftest import Desk


def daemon_pid(desk: Desk) -> int:
    return int((desk.cluster.folder / "daemon.pid").read_text())


def srun_that_is_dead(desk: Desk, *words: str, **environ: str) -> None:
    """It has asked, and is gone when the daemon looks at that."""
    os.kill(daemon_pid(desk), signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(desk.cluster.folder / "socket"))
        about = [f"cwd={desk.folder}", "umask=18", f"pid={os.getpid()}"]
        variables = [f"{name}={value}" for name, value in environ.items()]
        line.sendall(wire.frame("C", wire.joined(["srun", *words])) + wire.frame("D", wire.joined(about))
                     + wire.frame("E", wire.joined(variables)) + wire.frame("G"))  # fmt: skip
    os.kill(daemon_pid(desk), signal.SIGCONT)


def test_a_job_whose_srun_died_before_its_step_began_ends(shared_desk: Desk) -> None:
    desk = shared_desk
    job = desk.submit(script="echo up; until [ -e go ]; do sleep 0.05; done")
    desk.until_said(job, "up")
    srun_that_is_dead(desk, "--verbose", "true", SLURM_JOB_ID=job)
    assert desk.say(f"squeue -h --steps -j {job} -o %i").split() == [f"{job}.batch"]
    (desk.folder / "go").touch()
    desk.cluster.wait(job, "COMPLETED")


def test_a_job_that_a_dead_srun_made_for_itself_ends(shared_desk: Desk) -> None:
    srun_that_is_dead(shared_desk, "--verbose", "--job-name=dead", "true")
    shared_desk.until(lambda: shared_desk.say("squeue -h -t all -n dead -o %T") == "FAILED", "the end of the job")


@pytest.mark.parametrize("words", [["--multi-prog", "nothing"], ["--ntasks=1", "--relative=3", "true"]])
def test_a_job_that_srun_made_for_a_step_that_is_refused_ends(shared_desk: Desk, words: list[str]) -> None:
    assert shared_desk.run("srun", *words).returncode == 1
    assert shared_desk.say("squeue -h") == ""
