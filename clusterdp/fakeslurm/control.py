"""FakeCluster's connection to the daemon: it sends requests as commands do, for the command `control`."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from clusterdp.fakeslurm.core import wire
from clusterdp.fakeslurm.core.paths import Paths
from clusterdp.fakeslurm.errors import FakeSlurmError


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
                f"{self._folder}: the fake cluster does not answer. Start it with `clusterdp fake up`."
            ) from error
        return line

    @property
    def _folder(self) -> Path:
        return self._paths.folder

    def hold(self) -> socket.socket:
        """A connection that keeps the cluster up: when it closes, the cluster goes down."""
        line = self.connect()
        line.sendall(_request("lifeline"))
        line.recv(64)
        return line

    def ask(self, *words: str, timeout_s: float | None = None) -> str:
        """Send a request; returns the answer. Raises FakeSlurmError with the daemon's text if it refuses."""
        with self.connect() as line:
            line.settimeout(timeout_s)
            line.sendall(_request(*words))
            frames, said = wire.Frames(), {"o": b"", "e": b""}
            while True:
                try:
                    data = line.recv(1 << 16)
                except TimeoutError:
                    raise FakeSlurmError(f"{' '.join(words)}: not within {timeout_s:g} s.") from None
                except ConnectionError:  # the daemon was killed
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
