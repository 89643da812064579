"""FakeCluster: starts a cluster in a folder, uses it, causes faults, takes it down."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .core import hosts_file, login_shells, node_folders, processes, wire
from .core.job_environ import MARK
from .core.paths import DAEMON_PROGRAM, Paths
from .core.release import version_of
from .core.shape import PartitionShape, Shape, conf_text
from .core.state import FINAL, JobState
from .errors import VERB, FakeSlurmError
from .install_commands import install

STOP_WITHIN_S = 15


class FakeCluster:
    """A cluster of pretend nodes on this machine, which runs the same sbatch scripts as a real Slurm.

    As a context manager, the cluster exists as long as the `with` block, and ends with the process, even if the process
    is killed. After a call of `up()`, or from the command line, the cluster exists until `down()`.

        with FakeCluster(nodes=2, quick=True) as cluster:
            job = cluster.submit("job.sbatch")
            cluster.wait(job, "RUNNING")
            cluster.preempt(job)
            cluster.wait(job, "COMPLETED")

    `quick`: the controller checks every second and starts a requeued job after 1 s. By default, the controller is as
    slow as Slurm's.

    `slurm_version`: the release that the cluster imitates (see core/release.py); default 24.11.

    `time_scale`: the number by which time limits, grace times and the controller's delays are divided
    (SlurmConf.scaled).

    With `node_local`, each node has its own /tmp, /var/tmp, /dev/shm and TMPDIR, which are emptied when the node fails.
    `shared`: folders below /tmp, ... that all nodes share nevertheless, such as the folder of the jobs.

    `shape`: your own nodes, partitions and settings. With a `shape`, the arguments from `nodes` to `time_scale` have no
    effect.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        nodes: int = 4,
        cpus_per_node: int = 8,
        gpus_per_node: int = 2,
        quick: bool = False,
        time_scale: float = 1.0,
        partitions: Sequence[PartitionShape] | None = None,
        shape: Shape | None = None,
        slurm_version: str | None = None,
        node_local: bool = False,
        shared: Sequence[str | os.PathLike[str]] = (),
    ):
        self._temporary = folder is None
        self.folder = Path(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="fakeslurm-")).resolve()
        self._paths = Paths(self.folder)
        made = shape or Shape.simple(nodes, cpus_per_node, gpus_per_node, quick=quick, time_scale=time_scale)
        if partitions:
            made = Shape(made.nodes, tuple(partitions), made.settings, made.name)
        if slurm_version:
            made = replace(made, settings=replace(made.settings, slurm_version=version_of(slurm_version)))
        if node_local:
            common = tuple(os.path.realpath(each) for each in shared)
            made = replace(made, settings=replace(made.settings, node_local=True, shared=common))
        if made.settings.node_local and not node_folders.possible():
            raise FakeSlurmError("node_local: this system gives no mount namespaces. Leave it out.")
        self._shape = made
        self._line = ControlConnection(self._paths)
        self._lifeline: socket.socket | None = None

    @staticmethod
    def default_folder() -> Path:
        """Returns the folder of the cluster of `fakeslurm up`, private to the user."""
        base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        return Path(base) / "clusterdp" / "fake"

    @staticmethod
    def owns(conf: Path) -> bool:
        """Whether this slurm.conf was written by a fake cluster."""
        paths = Paths(conf.parent)
        return conf == paths.conf and os.path.exists(paths.shape)

    @classmethod
    def attach(cls, folder: Path | None = None) -> FakeCluster:
        """Returns the cluster that is already up in this folder. Raises FakeSlurmError if no cluster is up in the
        folder."""
        folder = Path(folder or cls.default_folder()).absolute()
        paths = Paths(folder)
        if not _is_up(paths):
            raise FakeSlurmError(f"{folder}: no fake cluster is up there. Start one: `{VERB} up`, or use --dir.")
        shape = Shape.from_json(json.loads(paths.shape.read_text())["shape"])
        cluster = cls(folder, shape=shape)
        if not paths.answers():
            cluster._start_daemon()
        return cluster

    # -- life --

    def up(self, *, owned: bool = False) -> FakeCluster:
        """Starts the cluster. Returns when the cluster accepts jobs. An `owned` cluster ends with this process, even by
        kill -9."""
        paths = self._paths
        up_already = f"{self.folder}: a fake cluster is up there. Use it, or `{VERB} down` first."
        if _is_up(paths) and paths.answers():
            raise FakeSlurmError(up_already)
        try:
            paths.make()
            lock = paths.lock_daemon()
            if lock is None:  # another process has just started a cluster here
                raise FakeSlurmError(up_already)
            try:
                self._write_files(owned)
            finally:
                os.close(lock)
        except OSError as error:
            raise FakeSlurmError(f"{self.folder}: {error.strerror}. Choose a folder that you can write to.") from error
        try:
            self._start_daemon()
        except FakeSlurmError:
            paths.up.unlink(missing_ok=True)
            raise
        if owned:
            self._lifeline = self._line.hold()
        return self

    def _write_files(self, owned: bool) -> None:
        """Removes the files of an earlier cluster in the folder, and writes the files of the new cluster."""
        paths = self._paths
        shutil.rmtree(paths.spool)
        paths.make()
        node_folders.remove(paths)
        for old in (paths.journal, paths.history, paths.wardens):
            old.unlink(missing_ok=True)
        owner = [os.getpid(), processes.start_time(os.getpid())] if owned else None
        paths.shape.write_text(json.dumps({"shape": self._shape.to_json(), "owner": owner}))
        paths.conf.write_text(conf_text(self._shape, self.folder))
        hosts_file.write((node.name for node in self._shape.nodes), paths.hosts)
        login_shells.write(paths)
        install(paths)
        paths.up.touch()

    def _start_daemon(self) -> None:
        command = [sys.executable, "-S", "-E", "-s", DAEMON_PROGRAM, str(self.folder)]
        environ = {"PATH": os.environ.get("PATH", os.defpath)}
        done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode or not self._paths.answers():
            log = self._paths.log.read_text().strip() if self._paths.log.exists() else ""
            last = log.splitlines()[-1] if log else done.stderr.strip() or "it said nothing"
            raise FakeSlurmError(f"{self.folder}: the fake cluster did not start: {last}. See {self._paths.log}.")

    def down(self) -> None:
        """Takes the cluster down, if it is up, and kills all processes that it started. Returns when these processes
        have ended."""
        paths = self._paths
        pid = _read_pid(paths.pid)
        paths.up.unlink(missing_ok=True)
        try:
            self._line.ask("stop")
        except FakeSlurmError:
            if pid and processes.alive(pid):
                processes.send([pid], 15)
        deadline = time.monotonic() + STOP_WITHIN_S
        while pid and processes.alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        # A daemon that was killed has left its jobs' processes, which may fork while they are killed.
        for _ in range(500):
            left = [*processes.of_wardens(paths.wardens), *processes.marked(f"{MARK}={paths.conf}")]
            if not any(map(processes.alive, left)):
                break
            processes.send(left, 9)
            time.sleep(0.02)
        if self._lifeline:
            self._lifeline.close()
            self._lifeline = None
        paths.socket.unlink(missing_ok=True)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> FakeCluster:
        return self.up(owned=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # -- use --

    @property
    def bin(self) -> Path:
        """The folder with the cluster's sbatch, srun, ..., which belongs first on PATH."""
        return self._paths.bin

    @property
    def unknown_names(self) -> list[str]:
        """Nodes whose names do not resolve in jobs (see hosts_file.py). Add these names to the machine's /etc/hosts."""
        return [] if self._paths.hosts.exists() else hosts_file.unknown(node.name for node in self._shape.nodes)

    @property
    def env(self) -> dict[str, str]:
        """This process's environment, with the cluster's commands first on PATH, for subprocesses that you start."""
        return self.environ()

    def environ(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, "PATH": f"{self.bin}{os.pathsep}{path}", "SLURM_CONF": str(self._paths.conf)}

    def exports(self) -> str:
        """Returns the lines that `fakeslurm env` prints for `eval` in a shell."""
        path, conf = shlex.quote(str(self.bin)), shlex.quote(str(self._paths.conf))
        return f'export PATH={path}:"$PATH"\nexport SLURM_CONF={conf}'

    def run(self, *words: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> str:
        """Runs a command with the cluster's commands on PATH, and returns its output. Raises FakeSlurmError if the
        command fails."""
        quiet = subprocess.DEVNULL
        try:
            done = subprocess.run(words, env=self.env, cwd=cwd, stdin=quiet, capture_output=True, text=True)
        except OSError as error:
            raise FakeSlurmError(f"{words[0]}: {error.strerror}. Is it on PATH?") from error
        if done.returncode:
            raise FakeSlurmError(f"{shlex.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}.")
        return done.stdout

    def submit(self, *words: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> str:
        """Runs `sbatch` with these words: options, script and arguments. Returns the job's id."""
        return self.run("sbatch", "--parsable", *words, cwd=cwd).strip()

    def status(self) -> str:
        """Returns the output of sinfo and squeue, for people."""
        return f"{self.folder}\n\n{self.run('sinfo')}\n{self.run('squeue')}"

    def wait(self, job: str | int, *states: JobState | str, timeout_s: float = 60) -> JobState:
        """Waits until the job (all elements of an array) is in one of these states. Without states, waits until the job
        is over. Returns the job's state. Raises FakeSlurmError if the job can no longer reach any of these states, or
        after `timeout_s`. States have the names that squeue prints, such as RUNNING or R.
        """
        try:
            known = [state if isinstance(state, JobState) else JobState.parse(state) for state in states]
        except ValueError as error:
            raise FakeSlurmError(str(error)) from None
        words = [state.value for state in known or FINAL]
        return JobState(self._line.ask("wait", str(job), *words, timeout_s=timeout_s).strip())

    def advance(self, seconds: float) -> None:
        """Moves the cluster's clock forward by `seconds` of the cluster (under a time scale, a cluster's second is
        shorter). Time limits, warnings, grace times and delays that lie in these seconds take effect. The processes of
        jobs get no time to run meanwhile.
        """
        self._line.ask("advance", str(seconds))

    def history(self) -> list[dict[str, Any]]:
        """Returns all events of history.jsonl, oldest first: state changes of jobs, and faults caused on purpose."""
        from .slurmdbd.history import read

        return list(read(self._paths.history))

    # -- break --

    def preempt(self, job: str | int, grace_s: float | None = None) -> None:
        """Preempts a running job, as a job of a higher partition does. `grace_s`: by default, the partition's
        GraceTime."""
        self._line.ask("preempt", str(job), *([] if grace_s is None else [str(grace_s)]))

    def fail(self, node: str) -> None:
        """Fails a node like a loss of power: its processes die at once, and the controller notices later."""
        self._line.ask("fail", node)

    def kill_slurmd(self, node: str) -> None:
        """Kills a node's slurmd, which the controller does not notice. Running tasks continue. srun cannot launch tasks
        on the node."""
        self._line.ask("kill-slurmd", node)

    def drain(self, node: str) -> None:
        """Drains a node: jobs on the node continue to run, and no more jobs start there."""
        self._line.ask("drain", node)

    def resume(self, node: str) -> None:
        """Makes a node accept jobs again after it failed, was drained, or lost its slurmd."""
        self._line.ask("resume", node)

    def kill_rank(self, job: str | int, rank: int) -> None:
        """Sends SIGKILL to one task of the job's newest step, as the kernel's out-of-memory killer does."""
        self._line.ask("kill-rank", str(job), str(rank))

    def slow(self, by_s: float, for_s: float = 0) -> None:
        """Delays each answer of the controller by `by_s`, for `for_s` (0: without end), in real seconds. Commands that
        wait 10 s for an answer fail, but the controller still does the commands' work. `slow(0)` ends the delay.
        """
        self._line.ask("slow", str(by_s), str(for_s))

    def unreachable(self, for_s: float) -> None:
        """Makes the controller unreachable for `for_s` seconds. Commands try for 9 s, then fail. `unreachable(0)` ends
        the fault."""
        self._line.ask("unreachable", str(for_s))

    def flaky(self, rate: float, seed: int = 0) -> None:
        """Makes this fraction of all sbatch calls fail, the same calls for the same seed. `flaky(0)` ends the fault."""
        if not 0 <= rate <= 1:
            raise FakeSlurmError(f"flaky: {rate:g} is not a share of the calls. Write 0 (none) to 1 (all).")
        self._line.ask("flaky", str(rate), str(seed))


def _is_up(paths: Paths) -> bool:
    """Whether the cluster was started and not taken down. Raises FakeSlurmError for another user's folder."""
    try:
        if not paths.up.exists():
            return False
    except PermissionError:
        raise FakeSlurmError(f"{paths.folder}: Permission denied. Choose a folder of your own.") from None
    paths.check_own()
    return True


def _read_pid(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


class ControlConnection:
    def __init__(self, paths: Paths):
        self._paths = paths

    def connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(self._paths.socket))
        except OSError as error:
            line.close()
            raise FakeSlurmError(
                f"{self._folder}: the fake cluster does not answer. Start it with `{VERB} up`."
            ) from error
        return line

    @property
    def _folder(self) -> Path:
        return self._paths.folder

    def hold(self) -> socket.socket:
        """Returns a connection that keeps the cluster up. When the connection closes, the cluster goes down."""
        line = self.connect()
        line.sendall(_request("lifeline"))
        line.recv(64)
        return line

    def ask(self, *words: str, timeout_s: float | None = None) -> str:
        """Sends a request to the daemon and returns the answer. If the daemon refuses, raises FakeSlurmError with its
        message."""
        with self.connect() as line:
            line.settimeout(timeout_s)
            line.sendall(_request(*words))
            frames, said = wire.Frames(), {"o": b"", "e": b""}
            while True:
                try:
                    data = line.recv(1 << 16)
                except TimeoutError:
                    raise FakeSlurmError(f"{' '.join(words)}: not within {timeout_s:g} s.") from None
                except ConnectionError:  # a daemon that is killed may reset the connection
                    data = b""
                if not data:
                    raise FakeSlurmError(
                        f"{self._folder}: the fake cluster went away while it was asked to {words[0]}."
                    )
                for kind, payload in frames.feed(data):
                    if kind in said:
                        said[kind] += payload
                    elif kind == "x":
                        if int(payload):
                            raise FakeSlurmError(said["e"].decode().strip())
                        return said["o"].decode()


def _request(*words: str) -> bytes:
    about = wire.joined([f"cwd={os.getcwd()}", "umask=18", f"pid={os.getpid()}"])
    return (
        wire.frame("C", wire.joined(["control", *words])) + wire.frame("D", about) + wire.frame("E") + wire.frame("G")
    )
