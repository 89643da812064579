"""RemoteSource: the runs of a host, as `clusterdp top` reads them over one ssh process."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from subprocess import DEVNULL, PIPE, STDOUT
from typing import TypeVar

from clusterdp.errors import RemoteError, Unreachable
from clusterdp.operate.find.find_run import RUNS
from clusterdp.operate.listing.watch_runs import Listing
from clusterdp.operate.status.follow import Pace
from clusterdp.operate.top.source import PACKAGES, START, Part
from clusterdp.remote.host import remote_host
from clusterdp.remote.run_verb import HostSession

Answer = TypeVar("Answer")
LAST, MOST = "12", "1000"  # lines of rank 0 on the screen of a run, and of its log


class RemoteSource:
    """A Source. The ssh process begins with the first call, and again after the connection was lost."""

    def __init__(self, host: str, everywhere: bool = False, ask_s: float = Pace.ask_s):
        self.host = remote_host(host).name
        self._everywhere, self._ask_s = everywhere, ask_s
        self._session: HostSession | None = None
        self._sweeps: set[str] = set()
        self._lock = threading.Lock()

    def list(self) -> Listing:
        runs = self._ask(lambda session: session.ask(["list", *["--all"] * self._everywhere]))
        self._sweeps = {run["run"] for run in runs if run["elements"]}
        return Listing(runs, _typed, (), self._ask_s)

    def details(self, run: str, columns: int) -> Iterator[Part]:
        parts = {"status": ["status", run], "why": ["why", run]}
        if run not in self._sweeps:
            parts |= {"last lines of rank 0": ["logs", run, "-n", LAST], "curve": ["plot", run]}
        for heading, words in parts.items():
            try:
                yield Part(heading, self._text(words))
            except Unreachable:
                raise
            except RemoteError as error:  # a run without logs or metrics still has its other parts
                yield Part(heading, str(error))

    def logs(self, run: str, errors: bool) -> str:
        return self._text(["logs", run, *(["--errors"] if errors else ["-n", MOST])])

    def call(self, words: Sequence[str]) -> str:
        command = [sys.executable, "-c", START, PACKAGES, "--on", self.host, *words]
        done = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        return done.stdout.decode(errors="replace").strip()

    def close(self) -> None:
        """Ends the ssh process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _text(self, words: Sequence[str]) -> str:
        return self._ask(lambda session: session.text(words))

    def _ask(self, question: Callable[[HostSession], Answer]) -> Answer:
        with self._lock:
            self._session = self._session or HostSession(self.host)
            try:
                return question(self._session)
            except Unreachable:
                self._end()
                raise


def _typed(run: str) -> str:
    path = PurePosixPath(run)
    return path.name if path.parent.name == RUNS.name else run
