"""Two users on one machine, a shell that is closed, a folder where a cluster died: it works, or says what is wrong."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterdp
from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core import orders, processes, reports, wire

from .conftest import Desk

NOBODY = 65534
OTHER_USER = """
import subprocess, sys
from pathlib import Path
from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
theirs, own = Path(sys.argv[1]), Path(sys.argv[2])
for attempt in (FakeCluster(theirs).up, lambda: FakeCluster.attach(theirs)):
    try:
        attempt()
    except FakeSlurmError as error:
        print(error)
try:
    subprocess.run([theirs / "bin" / "squeue"])
except PermissionError:
    print("no entry")
with FakeCluster(own, quick=True) as cluster:
    print(cluster.wait(cluster.submit("--output=/dev/null", "--wrap=srun true")).value)
    print(cluster.run("squeue", "-h", "-t", "all", "-o", "%U").strip())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, with a copy of the package, which the other user might not find here."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    home = Path(clusterdp.__file__).parent
    for part in ("slurm", "fakeslurm"):
        shutil.copytree(home / part, folder / "clusterdp" / part, ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("__init__.py", "procfs.py"):
        shutil.copy(home / module, folder / "clusterdp")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.defpath, "USER": "nobody", "HOME": "/"}
    return subprocess.run(
        words, user=NOBODY, group=NOBODY, extra_groups=[], env=environ, cwd="/", capture_output=True, text=True
    )


def python_for_all() -> str:
    recent = "import sys; sys.exit(sys.version_info < (3, 10))"
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if as_nobody(python, "-c", recent).returncode == 0:
                return python
        except OSError:
            continue
    pytest.skip("no Python here that another user may run")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be another user")
def test_two_users_have_separate_clusters_without_mutual_access(place: Path) -> None:
    python, own = python_for_all(), place / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    with FakeCluster(place / "mine", quick=True) as mine:
        script = f"import sys; sys.path.insert(0, {str(place)!r})\n{OTHER_USER}"
        said = as_nobody(python, "-B", "-c", script, str(mine.folder), str(own))
        refused = f"{mine.folder}: Permission denied. Choose a folder of your own."
        assert said.stdout.splitlines() == [refused, refused, "no entry", "COMPLETED", str(NOBODY)], said.stderr
        assert mine.run("squeue", "-h", "-t", "all") == ""


def test_closed_shell_ends_its_srun_but_leaves_the_cluster_running(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "cluster", quick=True)
    words = [sys.executable, "-m", "clusterdp", "fake", "up", "--quick", "--dir", str(cluster.folder)]
    script = 'export PATH="$BIN:$PATH"; "$@" >&2 || exit; srun bash -c "echo \\$\\$; exec sleep 300" & wait'
    environ = {**os.environ, "PYTHONPATH": os.getcwd(), "BIN": str(cluster.folder / "bin")}
    shell = subprocess.Popen(
        ["bash", "-c", script, "shell", *words], env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert shell.stdout
        task = int(shell.stdout.readline())
        os.killpg(shell.pid, signal.SIGHUP)
        shell.communicate()
        desk = Desk(FakeCluster.attach(cluster.folder), tmp_path)
        desk.until(lambda: not processes.alive(task), "the end of the task whose srun is dead")
        desk.until(lambda: desk.say("squeue -h") == "", "the end of its job")
        desk.cluster.wait(desk.submit(script="true"), "COMPLETED")
    finally:
        cluster.down()


def test_new_cluster_ends_jobs_left_by_a_killed_cluster_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    first = FakeCluster(folder, quick=True).up()
    try:
        desk = Desk(first, tmp_path)
        old = desk.submit(script="echo $$; exec sleep 300")
        desk.until(lambda: (tmp_path / f"{old}.out").exists() and desk.output(old).strip(), "the old job's pid")
        pid, daemon = int(desk.output(old)), int((folder / "daemon.pid").read_text())
        os.kill(daemon, signal.SIGKILL)
        desk.until(lambda: not processes.alive(daemon), "the end of the daemon")
        assert (folder / "socket").exists()  # a stale one
        second = FakeCluster(folder, quick=True).up()
        new = desk.submit(script="true")
        assert new == old
        second.wait(new, "COMPLETED")
        desk.until(lambda: not processes.alive(pid), "the end of what the old cluster ran")
    finally:
        first.down()


def test_old_slurmstepd_cannot_take_over_a_new_job_with_the_same_id(desk: Desk) -> None:
    job = desk.submit(script="echo up; exec sleep 300")
    desk.until_said(job, "up")
    sender = reports.Sender(int(job), "batch", 0, os.getpid())
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(20)
        line.connect(str(desk.cluster.folder / "socket"))
        line.sendall(wire.frame("J", reports.encode(sender, reports.Reconnected(()))))
        [(_, answer)] = wire.Frames().feed(line.recv(1 << 16))
        assert orders.decode(answer)[0] == orders.Terminate((signal.SIGKILL,), kill_after=None)
        desk.say(f"scancel {job}")  # which the job's own slurmstepd must hear
        desk.cluster.wait(job, "CANCELLED")
