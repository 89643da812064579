"""Real servers on this machine: one that speaks S3, and OpenSSH's sftp. Each ends with the tests, however they end."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.ports import free_port
from tests.waiting import wait_for

# Daemons live in sbin, which is not on everybody's PATH.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
# The command, until standard input ends; that it does when the tests are gone, even if they were killed.
_UNTIL_EOF = '"$@" </dev/null & read -r _; kill $!; wait'
KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class S3Server:
    """moto's, in a process of its own; its buckets live in memory."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", _MOTO]
        quiet = os.environ | KEYS
        self._process = subprocess.Popen(words, env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def freeze(self) -> None:
        """From here on it takes connections, for the kernel does, and never answers."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """By a signal: workers of a DataLoader that a test has left may have the other end of standard input."""
        with self._process:  # closes its pipes
            self._process.kill()


_MOTO = """
import logging, sys
logging.disable()
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.port, flush=True)
import threading
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


class SftpServer:
    """An sshd with keys and a configuration of its own, for this user alone."""

    def __init__(self, folder: Path):
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        self.port = free_port()
        self._config = folder / "sshd_config"
        for name in ("host_key", "home/.ssh/id_ed25519"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, env={"PATH": PATH})
        (folder / "authorized_keys").write_bytes((self.home / ".ssh/id_ed25519.pub").read_bytes())
        key = (folder / "host_key.pub").read_text()
        (self.home / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        lines = f"""
            Port {self.port}
            ListenAddress 127.0.0.1
            HostKey {folder}/host_key
            AuthorizedKeysFile {folder}/authorized_keys
            PidFile none
            StrictModes no
            UsePAM no
            UseDNS no
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            MaxStartups 100
            LogLevel FATAL
            Subsystem sftp internal-sftp
        """
        self._config.write_text(lines)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.start()

    @property
    def environ(self) -> Mapping[str, str]:
        """Where a client finds its key, and the server's."""
        return {"HOME": str(self.home)}

    def url(self, path: Path) -> str:
        return f"sftp://{getpass.getuser()}@127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        sshd = shutil.which("sshd", path=PATH)
        assert sshd is not None
        words = ["sh", "-c", _UNTIL_EOF, "sh", sshd, "-D", "-e", "-f", str(self._config)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        wait_for("sshd to listen", lambda: listens(self.port), 20, every_s=0.02)

    def stop(self) -> None:
        """The server, and the connections that it has: each is a process of its own."""
        for process in self._family():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.communicate()
        wait_for("sshd to be gone", lambda: not listens(self.port), 20, every_s=0.02)

    def cut(self) -> None:
        """End all connections; the server takes new ones."""
        listener = self._family()[1]
        for process in self._family()[2:]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert listener in self._family()

    def signal(self, number: int) -> None:
        """To the server and to all who serve its connections."""
        for process in self._family()[1:]:
            os.kill(process, number)

    def _family(self) -> list[int]:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True)
        parents = [tuple(map(int, line.split())) for line in listing.stdout.splitlines()]
        family = [self._process.pid]
        for member in family:  # it grows as we go
            family += [pid for pid, parent in parents if parent == member]
        return family


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def why_no_sshd() -> str | None:
    """Why there is no sshd to test with, in one line; None if there is, after installing it where that can be done."""
    if sys.platform != "linux":
        return f"sftp is tested with OpenSSH on Linux, and this is {sys.platform}"
    if shutil.which("sshd", path=PATH):
        return None
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return "there is no sshd, and it takes root and apt-get to install openssh-server"
    return _install()


def _install() -> str | None:
    # The package starts a server for all the world as soon as it is installed, unless this file is there.
    Path("/etc/ssh").mkdir(exist_ok=True)
    Path("/etc/ssh/sshd_not_to_be_run").touch()
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60"]
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "openssh-server"]):
        done = subprocess.run(apt + words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            return f"there is no sshd, and apt-get {words[0]} failed: {done.stderr.strip()[-300:]}"
    return None
