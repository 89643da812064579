"""RealSlurm: the handle to a test cluster, whose daemons live in a process of their own (see supervisor.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.slurm import packages

ROOT = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 20


class RealSlurm:
    """Up inside a `with` block; afterwards nothing of it is left, also if this process is killed.

    Nodes n1.. of 8 CPUs and 2 pretend GPUs; partitions `main` (default), `short` (1 minute), and below them in tier
    `low` (preempted with 10 s of grace) and `low0` (preempted without). KillWait is 5 s.
    `changes`: texts in its configuration files, and what to write instead.
    """

    def __init__(self, nodes: int = 4, changes: Mapping[str, str] | None = None):
        self.nodes = nodes
        self.changes = changes or {}
        self.folder = Path()
        self._supervisor: subprocess.Popen[str] | None = None

    def __enter__(self) -> RealSlurm:
        # munge's socket lies in it: a socket's name has at most 107 bytes, so no long pytest folder
        self.folder = Path(tempfile.mkdtemp(prefix="clusterdp-slurm-"))
        words = [sys.executable, "-m", "tests.slurm.supervisor", str(self.folder), str(self.nodes)]
        words.append(json.dumps(dict(self.changes)))
        # A session of its own: Ctrl-C is for the tests, which then take the cluster down in their own order.
        self._supervisor = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert self._supervisor.stdout
            said = self._supervisor.stdout.readline()
            if said != "ready\n":
                raise RuntimeError(f"no Slurm came up: {said}{self._supervisor.stdout.read()}")
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._down()

    def environ(self) -> dict[str, str]:
        """What a client of this cluster needs."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": packages.PATH}

    def _down(self) -> None:
        if self._supervisor is None:
            return
        supervisor, self._supervisor = self._supervisor, None
        assert supervisor.stdin
        assert supervisor.stdout
        supervisor.stdin.close()
        try:
            supervisor.wait(STOP_TIMEOUT_S)
        finally:
            supervisor.kill()
            supervisor.wait()
            supervisor.stdout.close()
