"""FakeCluster: a Slurm in a folder, to start, use, break and take down."""

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

from clusterdp.fakeslurm.control import ControlConnection
from clusterdp.fakeslurm.core import hosts_file, login_shells, processes, versions
from clusterdp.fakeslurm.core.job_environ import MARK
from clusterdp.fakeslurm.core.paths import DAEMON_PROGRAM, Paths
from clusterdp.fakeslurm.core.shape import PartitionShape, Shape, conf_text
from clusterdp.fakeslurm.errors import FakeSlurmError
from clusterdp.fakeslurm.install_commands import install
from clusterdp.slurm.state import FINAL, JobState

STOP_WITHIN_S = 15


class FakeCluster:
    """A cluster of pretend nodes on this machine, on which the same sbatch scripts run as on a real Slurm.

    As a context manager it lives as long as the block, and dies with its process even if that is killed. With `up()`
    alone (or from the command line) it stays until `down()`.

        with FakeCluster(nodes=2, quick=True) as cluster:
            job = cluster.submit("job.sbatch")
            cluster.wait(job, "RUNNING")
            cluster.preempt(job)
            cluster.wait(job, "COMPLETED")

    `quick`: the controller looks every second and starts a requeued job after one; otherwise as slow as Slurm.
    `slurm_version`: commands speak as that release does; only 22.05, the default, is recorded from a real Slurm.
    `time_scale`: that many times shorter are time limits, grace times and the controller's delays (Settings.scaled).
    `shape`: nodes, partitions and settings of your own, which the other arguments do not change.
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
    ):
        self._temporary = folder is None
        self.folder = Path(folder).absolute() if folder else Path(tempfile.mkdtemp(prefix="fakeslurm-")).resolve()
        self._paths = Paths(self.folder)
        made = shape or Shape.simple(nodes, cpus_per_node, gpus_per_node, quick=quick, time_scale=time_scale)
        if partitions:
            made = Shape(made.nodes, tuple(partitions), made.settings, made.name)
        if slurm_version:
            made = replace(made, settings=replace(made.settings, slurm_version=versions.check(slurm_version)))
        self._shape = made
        self._line = ControlConnection(self._paths)
        self._lifeline: socket.socket | None = None

    @staticmethod
    def default_folder() -> Path:
        """Where `clusterdp fake up` puts its cluster: private to the user, out of the way of others."""
        base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        return Path(base) / "clusterdp" / "fake"

    @staticmethod
    def owns(conf: Path) -> bool:
        """Whether this slurm.conf is that of a fake cluster."""
        paths = Paths(conf.parent)
        return conf == paths.conf and os.path.exists(paths.shape)

    @classmethod
    def attach(cls, folder: Path | None = None) -> FakeCluster:
        """A cluster that is up already; raises FakeSlurmError."""
        folder = Path(folder or cls.default_folder()).absolute()
        paths = Paths(folder)
        if not _is_up(paths):
            raise FakeSlurmError(
                f"{folder}: no fake cluster is up there. Start one: `clusterdp fake up`, or use --dir."
            )
        shape = Shape.from_json(json.loads(paths.shape.read_text())["shape"])
        cluster = cls(folder, shape=shape)
        if not paths.answers():
            cluster._start_daemon()
        return cluster

    # -- life --

    def up(self, *, owned: bool = False) -> FakeCluster:
        """Start it; returns when it takes jobs. `owned`: it goes down when this process ends, however it ends."""
        paths = self._paths
        up_already = f"{self.folder}: a fake cluster is up there. Use it, or `clusterdp fake down` first."
        if _is_up(paths) and paths.answers():
            raise FakeSlurmError(up_already)
        try:
            paths.make()
            lock = paths.alone()
            if lock is None:  # it was just started again
                raise FakeSlurmError(up_already)
            try:
                self._furnish(owned)
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

    def _furnish(self, owned: bool) -> None:
        """Nothing of an earlier cluster in the folder, all of this one."""
        paths = self._paths
        shutil.rmtree(paths.spool)
        paths.make()
        for old in (paths.journal, paths.history):
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
        """Take it down with everything that it started; returns when all is gone. Harmless if it is down."""
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
        # If the daemon had been killed, it could not tidy up.
        processes.send(processes.marked(f"{MARK}={paths.conf}"), 9)
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
        """For the front of PATH: the cluster's sbatch, srun, ..."""
        return self._paths.bin

    @property
    def is_up(self) -> bool:
        return self._paths.up.exists() and self._paths.answers()

    @property
    def unknown_names(self) -> list[str]:
        """Nodes whose names do not resolve in jobs (hosts_file.py says why), and which /etc/hosts should have."""
        return [] if self._paths.hosts.exists() else hosts_file.unknown(node.name for node in self._shape.nodes)

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the cluster's commands first on PATH: for subprocesses of your own."""
        return self.environ()

    def environ(self) -> dict[str, str]:
        path = os.environ.get("PATH", os.defpath)
        return {**os.environ, "PATH": f"{self.bin}{os.pathsep}{path}", "SLURM_CONF": str(self._paths.conf)}

    def exports(self) -> str:
        """Lines for `eval` in a shell: what `clusterdp fake env` prints."""
        path, conf = shlex.quote(str(self.bin)), shlex.quote(str(self._paths.conf))
        return f'export PATH={path}:"$PATH"\nexport SLURM_CONF={conf}'

    def run(self, *words: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> str:
        """What a command prints that has the cluster's on its PATH; raises FakeSlurmError if it fails."""
        quiet = subprocess.DEVNULL
        try:
            done = subprocess.run(words, env=self.env, cwd=cwd, stdin=quiet, capture_output=True, text=True)
        except OSError as error:
            raise FakeSlurmError(f"{words[0]}: {error.strerror}. Is it on PATH?") from error
        if done.returncode:
            raise FakeSlurmError(f"{shlex.join(map(str, words))}: exit {done.returncode}: {done.stderr.strip()}.")
        return done.stdout

    def submit(self, *words: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> str:
        """`sbatch` with these options, script and arguments; returns the job's id."""
        return self.run("sbatch", "--parsable", *words, cwd=cwd).strip()

    def status(self) -> str:
        """Nodes and jobs, as a text for people."""
        return f"{self.folder}\n\n{self.run('sinfo')}\n{self.run('squeue')}"

    def wait(self, job: str | int, *states: JobState | str, timeout_s: float = 60) -> JobState:
        """Until the job (all of an array) is in one of these states, by default: over. Returns the state; raises
        FakeSlurmError if it never will be, or not within `timeout_s`. Words are as squeue prints them, RUNNING or R.
        """
        try:
            known = [state if isinstance(state, JobState) else JobState.parse(state) for state in states]
        except ValueError as error:
            raise FakeSlurmError(str(error)) from None
        words = [state.value for state in known or FINAL]
        return JobState(self._line.ask("wait", str(job), *words, timeout_s=timeout_s).strip())

    def advance(self, seconds: float) -> None:
        """Move the cluster's clock forward: limits, warnings, grace times, delays pass as in so many of its seconds
        (under a time scale those are shorter than real ones). The processes of jobs get no time meanwhile.
        """
        self._line.ask("advance", str(seconds))

    def history(self) -> list[dict[str, Any]]:
        """What happened so far, in its order: changes of jobs, and all that was broken on purpose (history.jsonl)."""
        from clusterdp.fakeslurm.slurmdbd.history import read

        return list(read(self._paths.history))

    # -- break --

    def preempt(self, job: str | int, grace_s: float | None = None) -> None:
        """Push a running job out as a job of a higher partition would; `grace_s` is the partition's unless given."""
        self._line.ask("preempt", str(job), *([] if grace_s is None else [str(grace_s)]))

    def fail(self, node: str) -> None:
        """The node dies as if its power failed: its processes at once, and Slurm notices later."""
        self._line.ask("fail", node)

    def drain(self, node: str) -> None:
        """What runs there goes on; nothing more starts there."""
        self._line.ask("drain", node)

    def resume(self, node: str) -> None:
        """Whether it died or was drained: it is well again, and takes jobs."""
        self._line.ask("resume", node)

    def kill_rank(self, job: str | int, rank: int) -> None:
        """SIGKILL to one task of the job's newest step, as an out-of-memory killer sends it."""
        self._line.ask("kill-rank", str(job), str(rank))

    def slow(self, by_s: float, for_s: float = 0) -> None:
        """The controller answers each command so much later, for so long (0: until told otherwise). Commands lose
        patience after 10 s and fail, but what they asked for is done. `slow(0)` ends it. Seconds are real ones.
        """
        self._line.ask("slow", str(by_s), str(for_s))

    def unreachable(self, for_s: float) -> None:
        """Commands find no controller for so long: they try for 9 s, then fail. `unreachable(0)` ends it."""
        self._line.ask("unreachable", str(for_s))

    def flaky(self, rate: float, seed: int = 0) -> None:
        """Of all calls of sbatch this part fails, the same ones for the same seed. `flaky(0)` ends it."""
        if not 0 <= rate <= 1:
            raise FakeSlurmError(f"flaky: {rate:g} is no part of the calls. Write 0 (none) to 1 (all).")
        self._line.ask("flaky", str(rate), str(seed))


def _is_up(paths: Paths) -> bool:
    """Or is meant to be; raises FakeSlurmError for somebody else's folder."""
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
