"""Who is killed, or refused, at an awkward moment leaves no step and no job behind."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import processes, wire
from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.model import JobRecord, Step
from clusterdp.fakeslurm.core.step_plan import ComponentPlan, StepPlan, StreamTarget, TaskPlan
from clusterdp.fakeslurm.slurmctld import job_end, requeue
from clusterdp.fakeslurm.slurmctld.stepds import Stepds
from clusterdp.fakeslurm.slurmstepd.event_loop import EventLoop
from clusterdp.fakeslurm.slurmstepd.messages import StepMessages
from clusterdp.fakeslurm.slurmstepd.output_files import OutputFiles
from clusterdp.fakeslurm.slurmstepd.srun_connection import SrunConnection

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


def test_job_completes_if_its_srun_died_before_the_step_began(shared_desk: Desk) -> None:
    desk = shared_desk
    job = desk.submit(script="echo up; until [ -e go ]; do sleep 0.05; done")
    desk.until_said(job, "up")
    srun_that_is_dead(desk, "--verbose", "true", SLURM_JOB_ID=job)
    assert desk.say(f"squeue -h --steps -j {job} -o %i").split() == [f"{job}.batch"]
    (desk.folder / "go").touch()
    desk.cluster.wait(job, "COMPLETED")


def test_job_allocated_by_a_dead_srun_ends_as_failed(shared_desk: Desk) -> None:
    srun_that_is_dead(shared_desk, "--verbose", "--job-name=dead", "true")
    shared_desk.until(lambda: shared_desk.say("squeue -h -t all -n dead -o %T") == "FAILED", "the end of the job")


@pytest.mark.parametrize("words", [["--multi-prog", "nothing"], ["--ntasks=1", "--relative=3", "true"]])
def test_job_allocated_by_srun_ends_if_its_step_is_refused(shared_desk: Desk, words: list[str]) -> None:
    assert shared_desk.run("srun", *words).returncode == 1
    assert shared_desk.say("squeue -h") == ""


def test_never_started_het_step_removes_no_record_of_a_running_step(shared_desk: Desk) -> None:
    desk, wait = shared_desk, "--overlap bash -c 'touch up.$SLURM_PROCID; until [ -e go ]; do sleep 0.05; done'"
    script = f"#!/bin/bash\n#SBATCH --output=/dev/null\n#SBATCH hetjob\n#SBATCH -n1\nsrun {wait} : {wait}\n"
    (desk.folder / "het.sh").write_text(script)
    job = int(desk.say("sbatch --parsable het.sh"))
    desk.until(lambda: len(list(desk.folder.glob("up.*"))) == 2, "the step's tasks")
    srun_that_is_dead(desk, "--verbose", "--overlap", "true", ":", "--overlap", "true", SLURM_JOB_ID=str(job))
    assert desk.say(f"squeue -h --steps -j {job} -o %i").split() == [f"{job}.0", f"{job}.batch", f"{job + 1}.0"]
    (desk.folder / "go").touch()
    desk.cluster.wait(job, "COMPLETED")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Desk]:
    """Of a cluster that does not go down with its owner, for its daemon is killed."""
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    yield Desk(cluster, tmp_path)
    cluster.down()


def kill_daemon(desk: Desk) -> None:
    """It is gone with its fork server, at whose end the system lets supervisors go on that were stopped."""
    pids = [daemon_pid(desk), *processes.children(daemon_pid(desk))]
    os.kill(pids[0], signal.SIGKILL)
    desk.until(lambda: not any(map(processes.alive, pids)), "the end of the daemon")


@pytest.mark.skipif(not processes.LINUX, reason="needs subreapers")
def test_daemon_restarted_inside_a_job_survives_the_loss_of_the_job(mortal: Desk) -> None:
    job = mortal.submit(script="echo $PPID; until [ -e go ]; do sleep 0.05; done; squeue -h -o up; sleep 300")
    mortal.until_said(job, "\n")
    stepd_pid = int(mortal.output(job))
    kill_daemon(mortal)
    os.kill(stepd_pid, signal.SIGSTOP)  # it will not come back
    (mortal.folder / "go").touch()
    mortal.until_said(job, "up")
    revived = daemon_pid(mortal)
    assert revived in processes.descendants(stepd_pid)
    mortal.until(lambda: not processes.alive(stepd_pid), "the end of the supervisor")
    mortal.until(lambda: mortal.field(job, "Restarts") == "1", "the next attempt")
    assert daemon_pid(mortal) == revived


@pytest.mark.skipif(not processes.LINUX, reason="looks into /proc")
def test_kill_rank_reaches_a_slurmstepd_not_yet_reconnected_to_a_restarted_daemon(mortal: Desk) -> None:
    late, quick = (mortal.submit(script="srun bash -c 'echo $PPID; exec sleep 300'") for _ in range(2))
    for job in (late, quick):
        mortal.until_said(job, "\n")
    stepd_pid = int(mortal.output(late))
    kill_daemon(mortal)
    os.kill(stepd_pid, signal.SIGSTOP)
    cluster = FakeCluster.attach(mortal.cluster.folder)
    for job in (late, quick):
        cluster.kill_rank(job, 0)
    mortal.until_said(quick, "task 0: Killed")
    os.kill(stepd_pid, signal.SIGCONT)
    mortal.until_said(late, "task 0: Killed")


def test_dead_slurmstepd_counts_as_node_loss_only_if_its_step_had_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a new daemon at once, or when it did not connect. One that was not told to begin is none: its job was
    requeued as after the loss of a node, and the script ran twice. The daemon's own are handled by serve()."""
    killed, lost, never = list[int](), list[str](), list[str]()
    monkeypatch.setattr(processes, "send", lambda pids, number: killed.extend(pids))
    monkeypatch.setattr(requeue, "lose_node", lambda controller, job, node: lost.append(node))
    monkeypatch.setattr(job_end, "step_never_started", lambda controller, job, step: never.append(step.id))
    monkeypatch.setattr(job_end, "end_mirrors", lambda *_: None)
    with subprocess.Popen(["sleep", "300"]) as stranger:
        job = JobRecord(1, JobDesc("job", "main"), 1, 0)
        about: Any = ([1], {}, {})
        gone: Any = {"stepd_pid": stranger.pid, "stepd_start_time": "long ago"}
        lives: Any = {"stepd_pid": stranger.pid, "stepd_start_time": processes.start_time(stranger.pid)}
        job.steps = [
            Step("0", "dead", ["n1"], *about, **gone, begun=True),
            Step("1", "waited", ["n2"], *about, **gone),
            Step("2", "dies", ["n3"], *about, **lives, begun=True),
        ]
        daemon: Any = SimpleNamespace(
            model=SimpleNamespace(live_jobs=lambda: [job], jobs={1: job}), paths=SimpleNamespace(folder=Path("/")),
            controller=SimpleNamespace(settle=list, wake=list, clock=time.time, model=SimpleNamespace(jobs={})),
        )  # fmt: skip
        forkserver: Any = None
        stepds = Stepds(daemon, forkserver)
        try:
            stepds.recover()
            assert (killed, lost, never) == ([], ["n1"], ["1"])
        finally:
            stranger.kill()
    job.steps.append(Step("3", "of this daemon", ["n4"], *about, **gone, begun=True))
    stepds.end_missing()
    assert (killed, lost, never) == ([], ["n1", "n3"], ["1"])


def test_output_of_a_batch_script_cancelled_at_its_end_is_kept(tmp_path: Path) -> None:
    part = ComponentPlan(1, ("true",), {}, str(tmp_path), StreamTarget("null"), StreamTarget("file", "out"), None)
    plan = StepPlan(1, "batch", 0, "batch", ("n1",), (TaskPlan(0, "n1", 0, {}),), (part,), umask=0o022)
    files = OutputFiles(plan)
    os.write(files.descriptor(part.stdout, plan.tasks[0]), b"result\n")
    files.close()
    StepMessages(plan, SrunConnection(EventLoop(), None), files).cancelled("", signal.SIGTERM)
    assert (tmp_path / "out").read_text() == "result\n"
