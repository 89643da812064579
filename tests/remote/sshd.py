"""Sshd: a real sshd on loopback, with keys, port and config of its own in a folder, and an account there that is a
folder, too: HOME, and Python and Slurm on PATH. On this side, a folder with an `ssh` that reads a config of its own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.waiting import wait_for

SSHD = Path("/usr/sbin/sshd")
CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile {folder}/pid
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
PrintMotd no
MaxSessions 50
MaxStartups 100
SetEnv {environ}
{more}
UsePAM no
KbdInteractiveAuthentication no
"""
CLIENT = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking no
  ControlPath {folder}/%C
  ControlMaster auto
  ControlPersist 600
{more}
"""

# $SSH_CUT: the connection ends after so many bytes of output
SSH = """\
#!/bin/sh
echo "$*" >>{log}
[ "$SSH_CUT" ] || exec /usr/bin/ssh -F {config} "$@"
exec 3<&0
/usr/bin/ssh -F {config} "$@" <&3 | head -c "$SSH_CUT" &
exec >&- 3<&-
wait
"""


@dataclass
class Sshd:
    """`home` is the account there. `environ` is of this side."""

    folder: Path
    there: Mapping[str, str] = field(default_factory=dict)  # more variables there
    more: str = ""  # lines of sshd_config
    client: str = ""  # lines of ~/.ssh/config
    name: str = "cluster"
    program: Path = SSHD  # another name for it has PAM rules of its own

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)
        self.home = self.folder / "home"
        self.here = self.folder / "here"
        for each in (self.home, self.here, self.folder / "bin"):
            each.mkdir()
        for key in ("host_key", "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        (self.folder / "authorized_keys").write_text((self.folder / "key.pub").read_text())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        ours = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        environ = {"HOME": str(self.home), "SHELL": "/bin/sh", **ours, **self.there}
        pairs = " ".join(f'"{name}={value}"' for name, value in environ.items())
        text = CONFIG.format(port=self.port, folder=self.folder, environ=pairs, more=self.more)
        (self.folder / "sshd_config").write_text(text)
        text = CLIENT.format(port=self.port, folder=self.folder, name=self.name, more=self.client)
        (self.folder / "ssh_config").write_text(text)
        wrapper = self.folder / "bin" / "ssh"
        log = shlex.quote(str(self.folder / "calls"))
        wrapper.write_text(SSH.format(log=log, config=f"{self.folder}/ssh_config"))
        wrapper.chmod(0o755)
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERDP_", "SLURM"))},
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.here),
            "XDG_CONFIG_HOME": str(self.here / "config"),
            "XDG_CACHE_HOME": str(self.here / "cache"),
            "XDG_STATE_HOME": str(self.here / "state"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [self.program, "-D", "-e", "-f", self.folder / "sshd_config"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for("sshd", self._listens, 20, every_s=0.02, report=(self.folder / "log").read_text)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        self.close_master()
        if self.process:
            self.process.terminate()
            self.process.wait()

    def ssh(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["ssh", *words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    def open_master(self) -> None:
        # Not through pipes: the master stays, and would keep them open.
        subprocess.run(
            ["ssh", "-fN", self.name],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def close_master(self) -> None:
        self.ssh("-O", "exit", self.name, check=False)

    def profile(self, text: str) -> None:
        """Writes the user's site profile here."""
        path = self.here / "config" / "clusterdp" / "site.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def clusterdp(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """`clusterdp WORDS`, typed here."""
        return subprocess.run(
            ["clusterdp", *words],
            cwd=cwd or self.here,
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def on(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        """`clusterdp --on cluster WORDS`."""
        return self.clusterdp("--on", self.name, *words, cwd=cwd, **environ)

    @property
    def calls(self) -> list[str]:
        """The command lines of ssh so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def needs_sshd() -> None:
    if not SSHD.exists() or not os.access("/usr/bin/ssh", os.X_OK):
        pytest.skip("no sshd here: apt-get install openssh-server")
