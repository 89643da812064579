"""salloc: nodes for as long as a command runs on this side."""

import os
import signal
import subprocess

import pytest

from .conftest import Desk


def said(text: str) -> list[str]:
    return [line.removeprefix("salloc: ") for line in text.splitlines()]


def test_salloc_runs_its_command_locally_and_srun_on_the_nodes(shared_desk: Desk) -> None:
    script = "echo ${SLURMD_NODENAME-here} $SLURM_JOB_NODELIST; srun bash -c 'echo $SLURMD_NODENAME'"
    done = shared_desk.run("salloc", "--nodes=2", "bash", "-c", script)
    first, *others = done.stdout.splitlines()
    job = shared_desk.say("squeue -h -t all -n interactive -o %A").split()[-1]
    assert first.startswith("here n[")
    assert len(set(others)) == 2
    assert said(done.stderr) == [f"Granted job allocation {job}", f"Relinquishing job allocation {job}"]


@pytest.mark.parametrize(("ending", "code", "state"), [("exit 5", 5, "FAILED 5:0"), ("kill -9 $$", 0, "FAILED 0:9")])
def test_salloc_job_takes_the_exit_status_of_its_command(shared_desk: Desk, ending: str, code: int, state: str) -> None:
    name = f"ends-{code}"
    done = shared_desk.run("salloc", "--quiet", f"--job-name={name}", "bash", "-c", ending)
    assert (done.returncode, done.stderr) == (code, "")
    job = shared_desk.say(f"squeue -h -t all -n {name} -o %A")
    shared_desk.cluster.wait(job)
    assert f"{shared_desk.field(job, 'JobState')} {shared_desk.field(job, 'ExitCode')}" == state


def test_salloc_without_a_command_runs_the_users_shell(shared_desk: Desk) -> None:
    done = shared_desk.run("salloc", "--quiet", stdin="echo in $SLURM_JOB_ID; exit 4\n", SHELL="/bin/sh")
    assert done.stdout.startswith("in 1")
    assert done.returncode == 4


def test_cancelled_salloc_job_leaves_its_command_running(shared_desk: Desk) -> None:
    script = "touch up; until [ -e go ]; do sleep 0.05; done; echo done"
    words = ["salloc", "--job-name=revoked", "bash", "-c", script]
    environ = shared_desk.cluster.environ()
    salloc = subprocess.Popen(words, cwd=shared_desk.folder, env=environ, stdout=-1, stderr=-1, text=True)
    shared_desk.until((shared_desk.folder / "up").exists)
    job = shared_desk.say("squeue -h -n revoked -o %A")
    shared_desk.say(f"scancel {job}")
    shared_desk.cluster.wait(job)
    assert salloc.poll() is None
    (shared_desk.folder / "go").touch()
    out, err = salloc.communicate(timeout=30)
    assert (out, salloc.returncode) == ("done\n", 0)
    assert said(err) == [f"Granted job allocation {job}", f"Job allocation {job} has been revoked."]


def test_killed_daemon_does_not_end_the_command_of_salloc(hasty: Desk) -> None:
    script = "touch up; until [ -e go ]; do sleep 0.05; done; srun true; exit 7"
    words = ["salloc", "--quiet", "--job-name=kept", "bash", "-c", script]
    salloc = subprocess.Popen(words, cwd=hasty.folder, env=hasty.cluster.environ(), stderr=-1, text=True)
    hasty.until((hasty.folder / "up").exists)
    os.kill(int((hasty.cluster.folder / "daemon.pid").read_text()), signal.SIGKILL)
    (hasty.folder / "go").touch()
    _, err = salloc.communicate(timeout=30)
    assert (salloc.returncode, err) == (7, "")
    job = hasty.say("squeue -h -t all -n kept -o %A")
    assert hasty.field(job, "ExitCode") == "7:0"


def test_interrupted_salloc_cancels_its_pending_job(shared_desk: Desk) -> None:
    words = ["salloc", "--job-name=waits", "--begin=now+1hour", "true"]
    salloc = subprocess.Popen(words, cwd=shared_desk.folder, env=shared_desk.cluster.environ(), stderr=-1, text=True)
    shared_desk.until(lambda: shared_desk.say("squeue -h -n waits -o %A"))
    salloc.send_signal(signal.SIGINT)
    _, err = salloc.communicate(timeout=30)
    assert salloc.returncode == 1
    assert "Job aborted due to signal" in said(err)
    assert shared_desk.say("squeue -h -n waits -o %A") == ""


def test_salloc_no_shell_keeps_the_allocation_for_srun(shared_desk: Desk) -> None:
    shared_desk.say("salloc --no-shell --job-name=left")
    job = shared_desk.say("squeue -h -t R -n left -o %A")
    assert shared_desk.say(f"srun --jobid={job} echo hello") == "hello"
    shared_desk.say(f"scancel {job}")


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_quiet_command_killed_while_pending_is_silent(shared_desk: Desk, command: str) -> None:
    name = f"quiet-{command}"
    words = [command, "--quiet", f"--job-name={name}", "--begin=now+1hour", "true"]
    waits = subprocess.Popen(words, cwd=shared_desk.folder, env=shared_desk.cluster.environ(), stderr=-1, text=True)
    shared_desk.until(lambda: shared_desk.say(f"squeue -h -n {name} -o %A"))
    waits.terminate()
    assert (waits.communicate(timeout=30)[1], waits.returncode) == ("", 1)


def test_cancelled_job_of_a_pending_srun_has_slurms_words(shared_desk: Desk) -> None:
    """Source: _wait_for_alloc_rpc() of src/api/allocate.c, _retry() of src/srun/allocate.c (20.11 to 26.05)."""
    for quiet in ([], ["--quiet"]):
        words = ["srun", *quiet, "--job-name=goes", "--begin=now+1hour", "true"]
        waits = subprocess.Popen(words, cwd=shared_desk.folder, env=shared_desk.cluster.environ(), stderr=-1, text=True)
        shared_desk.until(lambda: shared_desk.say("squeue -h -n goes -o %A"))
        job = shared_desk.say("squeue -h -n goes -o %A")
        shared_desk.say(f"scancel {job}")
        error = "srun: error: Unable to allocate resources: Job/step already completing or completed\n"
        info = f"srun: job {job} queued and waiting for resources\nsrun: Job has been cancelled\n"
        assert (waits.communicate(timeout=30)[1], waits.returncode) == (error if quiet else info + error, 1)
