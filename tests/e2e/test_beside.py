"""Programs beside the ranks of a job (`shell`, `exec`, `stacks`), on the fake and on a real Slurm."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

CONFIG = """
command: [bash, -c, "cd ..; touch ran-$RANK; exec sleep 600"]
launch: {env: {OURS: yes it is}}
snapshot: {enabled: false}
resources: {partition: main, nodes: 2, tasks_per_node: 2, time: 10}
"""


@pytest.fixture
def run(cluster: Cluster, project: Path) -> Iterator[Run]:
    (project / "job.yaml").write_text(CONFIG)
    found = submit(cluster, project, "job.yaml", f"run_dir={project}/run")
    ran = [project.parent / f"ran-{rank}" for rank in range(4)]
    wait_for("the ranks", lambda: all(map(Path.exists, ran)), 90, report=found.account)
    yield found
    cluster.run("scancel", found.job)


def test_exec_has_environment_and_folder_of_its_rank(cluster: Cluster, project: Path, run: Run) -> None:
    show = 'echo "$RANK|$WORLD_SIZE|$OURS|$PWD|$SLURMD_NODENAME|$1"; exit 5'
    done = clusterdp(cluster, project, "exec", "run", "--rank", "3", "--", "bash", "-c", show, "x", "a b;$HOME")
    nodes = cluster.run("squeue", "-h", "-j", run.job, "-o", "%N").strip()
    second = cluster.run("scontrol", "show", "hostnames", nodes).split()[1]
    assert done.stdout.splitlines() == [f"3|4|yes it is|{project.parent}|{second}|a b;$HOME"], done.stderr
    assert done.returncode == 5


def test_exec_runs_once_on_each_node_with_all(cluster: Cluster, project: Path, run: Run) -> None:
    done = clusterdp(cluster, project, "exec", "run", "--all", "--", "bash", "-c", "echo $RANK")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1::2] == ["0", "2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("exec", "run", "--rank", "9", "--", "true"), "--rank 9: does not run now. Of job {job}, these do: 0-3."),
        (("exec", "run", "--", "no-such-program"), "no-such-program: cannot be run: No such file or directory"),
        (("exec", "run"), "exec: names no program."),
        (("stacks", "run"), "no stacks: only entry: jobs have stacks"),
        (("stacks", "run", "--rank", "7"), "--rank 7: does not run now."),
    ],
)
def test_mistakes_beside_ranks_are_one_line(
    cluster: Cluster, project: Path, run: Run, words: tuple[str, ...], said: str
) -> None:
    done = clusterdp(cluster, project, *words)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert said.format(job=run.job) in done.stderr, done.stdout + done.stderr


def test_waiting_run_has_no_rank_to_exec_at(cluster: Cluster, project: Path) -> None:
    (project / "job.yaml").write_text(CONFIG)
    held = submit(cluster, project, "job.yaml", f"run_dir={project}/held", "resources.extra.begin=now+1hour")
    done = clusterdp(cluster, project, "exec", "held", "--", "true")
    assert "held: does not run now (pending), so there is no rank." in done.stderr and done.returncode == 4
    cluster.run("scancel", held.job)


def test_refused_step_beside_ranks_is_one_line(cluster: Cluster, project: Path, run: Run) -> None:
    (project / "bin").mkdir()
    srun = project / "bin/srun"
    srun.write_text("#!/bin/sh\necho 'srun: error: Unable to create step for job: Access denied' >&2; exit 1\n")
    srun.chmod(0o755)
    own = Cluster(cluster.name, {**cluster.variables, "PATH": f"{srun.parent}:{cluster.environ()['PATH']}"}, 60)
    done = clusterdp(own, project, "shell", "run")
    assert done.stderr.count("\n") == 1 and "cannot run a step beside job" in done.stderr
    assert "Access denied" in done.stderr and done.returncode == 3


def test_shell_on_a_terminal_gets_each_key(cluster: Cluster, project: Path, run: Run) -> None:
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(project)
        environ = cluster.environ() | {"SHELL": "/bin/sh", "PS1": "ready$ "}
        os.execve(cluster.python, [cluster.python, "-m", "clusterdp", "shell", "run", "--rank", "2"], environ)
    seen = b""

    def until(word: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 30
        while word not in seen and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                seen += os.read(terminal, 4096)
        assert word in seen, seen.decode(errors="replace")
        seen = b""

    prompt = b"$ " if os.getuid() else b"# "
    until(prompt)
    os.write(terminal, b"tty; echo rank-$RANK\r")
    until(b"rank-2")
    # One process says it and sleeps: a shell that forks after its own echo may get the signal in between, and waits on.
    os.write(terminal, b"sh -c 'echo sleeps; exec sleep 300'\r")
    until(b"\nsleeps")
    os.write(terminal, b"\x03")
    until(prompt)
    os.write(terminal, b"echo woke-$((1 + 1)); exit 7\r")
    until(b"woke-2")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(terminal)
