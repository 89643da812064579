"""The process that owns the daemons of a test cluster: `python -m tests.slurm.supervisor FOLDER NODES CHANGES`.

It boots them, prints `ready` (or why not, and exits 1), and holds them until its stdin ends or a signal comes:
so however the tests end, killed with SIGKILL even, the cluster ends with them. A slurmd that was killed is started
again, as systemd would. It adopts what daemons and jobs orphan
(child subreaper), and kills all of its descendants and removes FOLDER before it exits: the state is thrown away, so
nothing needs a farewell. $KEEP_SLURM_LOGS, if set, keeps the folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.ports import free_ports
from tests.slurm import packages
from tests.slurm.conf import Shape

PR_SET_CHILD_SUBREAPER = 36
BOOT_TIMEOUT_S = 90.0
LOOK_S = 0.5  # between two looks at the daemons


class BootError(Exception):
    """The message says which daemon did not come up, with the end of its log."""


class Stop(Exception):
    """A signal asked the supervisor to end, or its owner is gone."""


class Daemons:
    """The daemons of one cluster, each in the foreground as a child of this process."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.environ = {
            "PATH": packages.PATH,
            "LC_ALL": "C",
            "SLURM_CONF": str(shape.slurm_conf),  # slurmdbd looks for its file beside this one
            "MYSQL_UNIX_PORT": str(shape.mariadb_socket),
        }
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.deadline = time.monotonic() + BOOT_TIMEOUT_S

    def boot(self) -> None:
        shape, folder = self.shape, self.shape.folder
        for name in ("log", "state", "spool", "database"):
            (folder / name).mkdir()
        for name, text in shape.files(self._release() >= (23, 2)).items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        self._boot_munge()
        if "accounting_storage/slurmdbd" in shape.slurm_conf.read_text():
            self._boot_database()
            self._start("slurmdbd", "slurmdbd", "-D", until=self._answers("sacctmgr", "--noheader", "show", "cluster"))
            self._call("sacctmgr", "--immediate", "add", "cluster", shape.cluster)
        self._start("slurmctld", "slurmctld", "-D", "-c", until=self._answers("scontrol", "ping"))
        for node in range(1, shape.nodes + 1):
            name = self.shape.changed(f"NodeName=n{node}").removeprefix("NodeName=")
            self._start(f"slurmd.{name}", "slurmd", "-D", "-N", name)
        self._wait("slurmctld", self._all_idle)

    def keep(self) -> None:
        """Starts each slurmd again that has ended."""
        for name, child in list(self.children.items()):
            if name.startswith("slurmd.") and child.poll() is not None:
                self._start(name, "slurmd", "-D", "-N", name.removeprefix("slurmd."))

    def _release(self) -> tuple[int, int]:
        year, month = self._ask("slurmctld", "-V").stdout.split()[-1].split(".")[:2]  # "slurm-wlm 22.05.8"
        return int(year), int(month)

    def _boot_munge(self) -> None:
        folder = self.shape.folder
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        options = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
        # --force: the socket lies in a folder of ours alone, which munged would rather have open to all
        self._start("munged", "munged", "--foreground", "--force", *options, until=self.shape.munge_socket.exists)

    def _boot_database(self) -> None:
        # A server that starts removes the temporary tables of all others in its tmpdir, which is /tmp else.
        temporary = self.shape.folder / "temporary"
        temporary.mkdir()
        folders = [f"--datadir={self.shape.folder}/database", f"--tmpdir={temporary}", "--user=root"]
        install = ["mariadb-install-db", "--no-defaults", *folders, "--skip-test-db"]
        self._call(*install, "--auth-root-authentication-method=normal")
        options = [*folders, "--skip-networking", f"--socket={self.shape.mariadb_socket}"]
        options += [f"--pid-file={self.shape.folder}/mariadb.pid", "--innodb-buffer-pool-size=32M"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"]
        ping = self._answers("mariadb-admin", "--no-defaults", f"--socket={self.shape.mariadb_socket}", "ping")
        self._start("mariadbd", "mariadbd", "--no-defaults", *options, until=ping)

    def _start(self, name: str, *words: str, until: Callable[[], bool] | None = None) -> None:
        with (self.shape.folder / "log" / f"{name}.out").open("wb") as log:
            self.children[name] = subprocess.Popen(
                words, env=self.environ, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        if until:
            self._wait(name, until)

    def _wait(self, name: str, until: Callable[[], bool]) -> None:
        while not until():
            for other, child in self.children.items():
                if child.poll() is not None:
                    raise BootError(f"{other}: exited with {child.returncode}.\n{self._log_tail(other)}")
            if time.monotonic() > self.deadline:
                raise BootError(f"{name}: not up within {BOOT_TIMEOUT_S:.0f} s.\n{self._log_tail(name)}")
            if owner_has_gone(timeout_s=0.05):
                raise Stop

    def _call(self, *words: str) -> None:
        done = self._ask(*words)
        if done.returncode:
            raise BootError(f"{' '.join(words)}: exit {done.returncode}.\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _answers(self, *words: str) -> Callable[[], bool]:
        return lambda: self._ask(*words).returncode == 0

    def _all_idle(self) -> bool:
        idle = self._ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
        return len(set(idle.stdout.split())) == self.shape.nodes

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def _log_tail(self, name: str) -> str:
        logs = sorted((self.shape.folder / "log").glob(f"{name}*"))
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs)


def owner_has_gone(timeout_s: float) -> bool:
    """Nothing is ever written to our stdin: readable means that its other end is closed."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def kill_descendants() -> None:
    """All of them, whatever session or parent they chose: orphans are ours, as this process is their reaper."""
    while children := _descendants(os.getpid()):
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass


def _descendants(root: int) -> list[int]:
    """Zombies are left out where their parent is not this process: they are gone with it."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, unseen = [], [root]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def main(folder: str, nodes: str, changes: str) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def stop(signum: int, frame: object) -> None:
        raise Stop

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, stop)
    try:
        count = int(nodes)
        packages.install()
        daemons = Daemons(Shape(Path(folder), free_ports(count + 2), count, json.loads(changes)))
        daemons.boot()
        print("ready", flush=True)
        while not owner_has_gone(timeout_s=LOOK_S):
            daemons.keep()
    except Stop:
        pass
    except (BootError, RuntimeError, OSError) as error:
        print(error, flush=True)
        return 1
    finally:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        kill_descendants()
        if os.environ.get("KEEP_SLURM_LOGS"):
            print(f"logs of the test Slurm: {folder}/log", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
