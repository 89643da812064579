"""FakeCluster's connection to its daemon: as the commands talk to it, with words of its own."""

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
        """The cluster goes down when this connection closes."""
        line = self.connect()
        line.sendall(_request("lifeline"))
        line.recv(64)
        return line

    def ask(self, *words: str, timeout_s: float | None = None) -> str:
        """What the daemon answers; raises FakeSlurmError with its text if it refuses."""
        with self.connect() as line:
            line.settimeout(timeout_s)
            line.sendall(_request(*words))
            frames, said = wire.Frames(), {"o": b"", "e": b""}
            while True:
                try:
                    data = line.recv(1 << 16)
                except TimeoutError:
                    raise FakeSlurmError(f"{' '.join(words)}: not within {timeout_s:g} s.") from None
                except ConnectionError:  # it was killed
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
