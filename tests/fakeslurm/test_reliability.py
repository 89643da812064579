"""Nothing is left over, nothing is forgotten, whoever is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.core import processes
from clusterdp.fakeslurm.core.paths import Paths
from clusterdp.fakeslurm.core.state import JobState

from .conftest import Desk

SLEEPER = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(300)"


def daemon_pid(cluster: FakeCluster) -> int:
    return int((cluster.folder / "daemon.pid").read_text())


def pids_said(desk: Desk, job: str, count: int) -> list[int]:
    desk.until(
        lambda: (desk.folder / f"{job}.out").exists() and len(desk.output(job).split()) >= count, "the pids of tasks"
    )
    return [int(word) for word in desk.output(job).split()]


def busy_job(desk: Desk, *words: str) -> tuple[str, list[int]]:
    """A job of two tasks and a background child, with their pids."""
    script = f'{sys.executable} -c "{SLEEPER}" &\nsrun {sys.executable} -c "{SLEEPER}"\n'
    job = desk.submit("-N2", *words, script=script)
    return job, pids_said(desk, job, 3)


def test_cluster_down_ends_every_process_it_started(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        _, pids = busy_job(desk)
        daemon = daemon_pid(cluster)
    finally:
        cluster.down()
    assert [pid for pid in [*pids, daemon] if processes.alive(pid)] == []
    assert not any(map(processes.alive, processes.of_wardens(Paths(cluster.folder).wardens)))


def test_cluster_down_ends_orphans_of_a_killed_daemon_without_their_environment(tmp_path: Path) -> None:
    """Processes are found below the cluster's wardens: no stranger's environment is read."""
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        sleeper = f"env -i setsid {sys.executable} -c '{SLEEPER}' &\n"
        job = desk.submit(script=f"{sleeper}srun {sys.executable} -c '{SLEEPER}'\n")
        pids = pids_said(desk, job, 2)
        processes.send([daemon_pid(cluster)], 9)
        desk.until(lambda: not Paths(cluster.folder).answers(), "the end of the daemon")
    finally:
        cluster.down()
    assert [pid for pid in pids if processes.alive(pid)] == []


def test_program_started_with_the_clusters_environment_survives_cluster_down(tmp_path: Path) -> None:
    with FakeCluster(tmp_path / "cluster", quick=True) as cluster:
        editor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=cluster.environ())
    assert editor.poll() is None
    editor.communicate(b"\n")
    assert editor.returncode == 0


def test_scancel_ends_a_daemonized_task(hasty: Desk) -> None:
    escape = "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n" + SLEEPER
    (hasty.folder / "escape.py").write_text(escape)
    job = hasty.submit(script=f"srun {sys.executable} escape.py & sleep 300")
    [pid] = pids_said(hasty, job, 1)
    hasty.say(f"scancel {job}")
    hasty.cluster.wait(job, JobState.CANCELLED)
    hasty.until(lambda: not processes.alive(pid), "the end of the process that escaped")


def test_background_process_of_a_batch_script_ends_with_the_job(desk: Desk) -> None:
    job = desk.submit(
        script=f'{sys.executable} -c "{SLEEPER}" & sleep 0.3; until [ -s $SLURM_JOB_ID.out ]; do sleep 0.05; done'
    )
    desk.cluster.wait(job, JobState.COMPLETED)
    [pid] = pids_said(desk, job, 1)
    desk.until(lambda: not processes.alive(pid), "the end of the background process")


def test_cluster_ends_itself_and_its_jobs_if_its_owner_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert owner.stdout
    daemon = int(owner.stdout.readline())
    cluster = FakeCluster.attach(tmp_path / "cluster")
    _, pids = busy_job(Desk(cluster, tmp_path))
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(processes.alive, [daemon, *pids])):
        assert time.monotonic() < deadline, "the cluster outlived its owner"
        time.sleep(0.05)


OWNER = """
import sys, time
from pathlib import Path
from clusterdp.fakeslurm import FakeCluster
with FakeCluster(Path(sys.argv[1]) / "cluster", quick=True) as cluster:
    print((cluster.folder / "daemon.pid").read_text(), flush=True)
    time.sleep(300)
"""


def test_killed_daemon_is_restarted_by_the_next_command_and_remembers_all_jobs(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        script = (
            f'srun {sys.executable} -c "{SLEEPER}" | head -1; until [ -e go ]; do sleep 0.05; done; srun echo after'
        )
        held = desk.say("sbatch --parsable --hold --wrap true")
        over = desk.say("sbatch --parsable --output=/dev/null --wrap 'exit 3'")
        cluster.wait(over, JobState.FAILED)
        script = "echo before; until [ -e go ]; do sleep 0.05; done; srun -N2 echo after"
        job = desk.submit("-N2", script=script)
        desk.until_said(job, "before")
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        states = dict(line.split() for line in desk.say("squeue -h -t all -o '%A %T'").splitlines())
        assert states == {held: "PENDING", over: "FAILED", job: "RUNNING"}
        assert desk.field(over, "ExitCode") == "3:0"
        (tmp_path / "go").touch()
        cluster.wait(job, JobState.COMPLETED)
        assert desk.output(job).splitlines() == ["before", "after", "after"]
    finally:
        cluster.down()


def test_job_ending_during_a_daemon_outage_is_recorded_afterwards(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        job = desk.submit(script="echo up; until [ -e go ]; do sleep 0.05; done; exit 7")
        desk.until_said(job, "up")
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        (tmp_path / "go").touch()
        desk.until(lambda: desk.say(f"squeue -h -t all -j {job} -o %T") == "FAILED", "the job's end")
        assert desk.field(job, "ExitCode") == "7:0"
    finally:
        cluster.down()


@pytest.mark.skipif(not processes.LINUX, reason="needs a process's parent to tell its children that it dies")
def test_killed_slurmstepd_ends_its_tasks_and_its_job(desk: Desk) -> None:
    job, pids = busy_job(desk)
    stepds = {os.getsid(pid) for pid in pids}
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in stepds}
    processes.send(parents, signal.SIGKILL)  # the second may have ended because of the first
    desk.until(lambda: not any(map(processes.alive, pids)), "the tasks' end")
    desk.until(lambda: desk.say(f"squeue -h -t all -j {job} -o %T") == "FAILED", "its record")


RELAY = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
"""


@pytest.mark.skipif(not processes.LINUX, reason="needs a process that adopts orphans")
def test_forking_children_of_a_killed_slurmstepd_are_ended(desk: Desk) -> None:
    """A child whose parent ended between two looks survived, and with it the job."""
    program = desk.folder / "relay.py"
    program.write_text(RELAY)
    job = desk.submit(script=f"echo $PPID; for i in 1 2 3 4 5 6 7 8; do {sys.executable} {program} & done; sleep 300")
    stepd = pids_said(desk, job, 20)[0]
    os.kill(stepd, signal.SIGKILL)
    desk.until(lambda: desk.cluster.run("squeue", "-h", "-j", job) == "", "the job's end")
    forkserver = forkserver_pid(desk.cluster)
    desk.until(lambda: not processes.children(forkserver), "the orphans' end", within_s=10)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks into /proc")
def test_batch_script_and_tasks_inherit_only_the_standard_streams(desk: Desk) -> None:
    """A program that held the connection of its killed supervisor kept the job running."""
    look = "bash -c 'ls /proc/$$/fd; exit'"
    job = desk.submit(script=f"{look}; srun {look}")
    desk.cluster.wait(job, JobState.COMPLETED)
    assert desk.output(job).split() == ["0", "1", "2"] * 2


def forkserver_pid(cluster: FakeCluster) -> int:
    [pid] = processes.children(daemon_pid(cluster))
    return pid


def test_killed_fork_server_is_replaced_and_running_jobs_continue(desk: Desk) -> None:
    first = desk.submit(script="echo up; until [ -e go ]; do sleep 0.05; done; srun echo after")
    desk.until_said(first, "up")
    forkserver = forkserver_pid(desk.cluster)
    os.kill(forkserver, signal.SIGKILL)
    second = desk.submit(script="srun echo too")
    desk.cluster.wait(second, JobState.COMPLETED)
    (desk.folder / "go").touch()
    desk.cluster.wait(first, JobState.COMPLETED)
    assert (desk.output(first), desk.output(second)) == ("up\nafter\n", "too\n")


def test_batch_script_being_started_when_the_daemon_is_killed_runs_once(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        forkserver = forkserver_pid(cluster)
        os.kill(forkserver, signal.SIGSTOP)
        job = desk.submit(script="echo once")
        desk.until(lambda: desk.field(job, "JobState") == "RUNNING", "its start, as far as the daemon knows")
        os.kill(daemon_pid(cluster), signal.SIGKILL)
        os.kill(forkserver, signal.SIGCONT)  # it finds the order, and nobody who would say go
        desk.until(lambda: desk.say(f"squeue -h -t all -j {job} -o %T") == "COMPLETED", "the job's end")
        desk.until(lambda: not processes.alive(forkserver), "the end of the fork server")
        assert desk.output(job) == "once\n"
    finally:
        cluster.down()


def test_two_clusters_with_the_same_job_id_stay_independent(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with FakeCluster(quick=True) as second:
        other = Desk(second, tmp_path / "other")
        mine, theirs = desk.submit(script="sleep 60"), other.submit(script="sleep 60")
        assert mine == theirs
        desk.say(f"scancel {mine}")
        desk.cluster.wait(mine, JobState.CANCELLED)
        assert other.field(theirs, "JobState") in ("PENDING", "RUNNING")


def test_cluster_folder_may_have_spaces_quotes_and_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "folder"' / ("long" * 30)
    with FakeCluster(folder, quick=True) as cluster:
        desk = Desk(cluster, tmp_path)
        job = desk.submit(script="srun echo $0; echo $SLURM_CONF")
        cluster.wait(job, JobState.COMPLETED)
        assert str(folder) in desk.output(job)


def test_cluster_folder_and_socket_are_private_to_the_user(cluster: FakeCluster) -> None:
    for path in (cluster.folder, cluster.folder / "state", cluster.folder / "bin"):
        assert path.stat().st_mode & 0o077 == 0
    assert (cluster.folder / "socket").stat().st_mode & 0o077 == 0


def test_second_cluster_in_the_same_folder_is_refused(cluster: FakeCluster) -> None:
    with pytest.raises(FakeSlurmError, match="is up there"):
        FakeCluster(cluster.folder).up()


def test_attach_without_a_cluster_is_an_error_naming_fake_up(tmp_path: Path) -> None:
    with pytest.raises(FakeSlurmError, match="clusterdp fake up"):
        FakeCluster.attach(tmp_path)
