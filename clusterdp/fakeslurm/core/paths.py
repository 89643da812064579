"""The paths of a cluster's files, which are all in its folder, and of its socket, whose path must be short."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import time
from pathlib import Path

from ..errors import FakeSlurmError

HISTORY = "history.jsonl"
DAEMON_PROGRAM = str(Path(__file__).resolve().parents[1] / "daemon_main.py")  # the program that starts a daemon
PATIENCE_S = 60  # maximum wait for a daemon that starts or ends: reading a long history takes time on a busy machine
SHORT = 60  # maximum bytes of the runtime folder's path
LONGEST = 100  # maximum bytes of a unix socket's path, because macOS allows 103 and Linux 107


class Paths:
    def __init__(self, folder: Path):
        self.folder = folder
        self.bin = folder / "bin"
        self.state = folder / "state"
        self.spool = folder / "spool"
        self.node_folders = folder / "nodes"  # see node_folders.py
        self.shape = self.state / "shape.json"
        self.journal = self.state / "journal"
        self.hosts = self.state / "hosts"
        self.profile = self.state / "profile"
        self.bash_env = self.state / "bash_env"
        self.no_path = self.state / "no_path"
        self.lock = self.state / "lock"
        self.log = folder / "daemon.log"
        self.history = folder / HISTORY
        self.pid = folder / "daemon.pid"
        self.wardens = self.state / "wardens"  # see start_daemon.py
        self.up = folder / "up"  # this file exists from the cluster's start until `down`
        self.conf = folder / "slurm.conf"
        self._near = folder / "socket"
        self.socket = self._choose_socket()

    def _choose_socket(self) -> Path:
        """Returns the socket's path: in the cluster's folder if that is short enough, else behind a link there."""
        if len(os.fsencode(self._near)) <= LONGEST:
            return self._near
        try:
            return Path(os.readlink(self._near))
        except OSError:
            return _short_place() / f"{_digest(self.folder)}.socket"

    @property
    def digest(self) -> str:
        return _digest(self.folder)

    def make(self) -> None:
        for folder in (self.folder, self.bin, self.state, self.spool):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.folder.lstat().st_uid == os.getuid():
            self.folder.chmod(0o700)
        self.check_own()
        if self.socket != self._near and not self._near.is_symlink():
            self._near.symlink_to(self.socket)

    def check_own(self) -> None:
        """Raises FakeSlurmError unless only this user has access to the folder, because the folder's files are
        executed."""
        check_private(self.folder)

    def interpreter(self) -> str:
        """Returns a path of Python that fits into the first line of a script: short and without blanks."""
        python = os.path.realpath(sys.executable)
        if len(os.fsencode(python)) <= LONGEST and not any(letter.isspace() for letter in python):
            return python
        place = private_place()
        link = place / f"python-{_digest(Path(python))}"
        if not link.is_symlink():
            link.symlink_to(python)
        return str(link)

    def listen(self) -> socket.socket:
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        check_private(self.socket.parent)
        self.socket.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.socket))
        self.socket.chmod(0o600)
        listener.listen(512)
        listener.setblocking(False)
        return listener

    def answers(self) -> bool:
        """Whether a daemon listens on the cluster's socket."""
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(self.socket))
            return True
        except OSError:
            return False
        finally:
            line.close()

    def lock_daemon(self) -> int | None:
        """Takes the lock that only one daemon can have. Returns the lock's descriptor, which must stay open. Returns
        None if another daemon answers.

        Waits while another daemon starts or ends. Raises FakeSlurmError if the other daemon still has the lock after
        PATIENCE_S and does not answer.
        """
        lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if self.answers():
                    os.close(lock)
                    return None
            time.sleep(0.02)
        os.close(lock)
        raise FakeSlurmError(f"{self.folder}: a daemon is there and does not answer. Kill it: see {self.pid}.")


def private_place() -> Path:
    """Returns the folder that all clusters of this user share."""
    place = _short_place()
    place.mkdir(mode=0o700, exist_ok=True)
    check_private(place)
    return place


def _short_place() -> Path:
    """Returns a folder in XDG_RUNTIME_DIR if that folder is short and private to the user, else in /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and len(os.fsencode(runtime)) <= SHORT and _is_private(Path(runtime)):
        return Path(runtime) / "clusterdp"
    return Path(f"/tmp/clusterdp-{os.getuid()}")


def _digest(folder: Path) -> str:
    import hashlib  # imported here because hashlib is rarely needed and takes a while to load

    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]


def check_private(folder: Path) -> None:
    """Raises FakeSlurmError unless only this user has access to the folder."""
    if not _is_private(folder):
        raise FakeSlurmError(
            f"{folder}: is not a folder that is yours alone, with mode 700. Remove it, chmod 700 it, or use another."
        )


def _is_private(folder: Path) -> bool:
    """Whether only this user has access to the folder. False for a link, because the link's owner can change its
    target."""
    try:
        about = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    return mine and not stat.S_IMODE(about.st_mode) & 0o077
