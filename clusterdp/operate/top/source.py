"""Source: the runs of one host, as `clusterdp top` needs them. LocalSource: those of this machine."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import NamedTuple, Protocol

from clusterdp.errors import ClusterdpError, RunError
from clusterdp.operate.listing.list_runs import Wanted
from clusterdp.operate.listing.watch_runs import ListedRuns, Listing
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.show_logs import show_logs
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.queue.run_cluster import commands_of
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.follow import Pace
from clusterdp.operate.status.show_status import status_lines
from clusterdp.operate.sweep.elements import counts, read_sweep, status_table
from clusterdp.operate.sweep.results import reason_lines
from clusterdp.operate.why.show_why import explanation, why_lines
from clusterdp.rundir import RunDir, SweepDir, is_sweep

LAST = 12  # lines of rank 0 on the screen of a run
# Starts this very clusterdp in a new process. `python -m` would also find modules in the user's working directory.
START = "import sys; sys.path[0] = sys.argv.pop(1); from clusterdp.cli import main; sys.exit(main())"


PACKAGES = str(Path(__file__).parents[3])  # the folder of this very clusterdp


class Part(NamedTuple):
    """A part of a screen: a heading, and text with colours."""

    heading: str
    text: str


class Source(Protocol):
    """The runs of one host. Its methods may wait for files, for Slurm or for a network, and are called in threads.
    Their errors are ClusterdpError and OSError."""

    host: str  # empty: this machine

    def list(self) -> Listing:
        """Returns the runs, as objects of `clusterdp list --json`. squeue is called once for each cluster."""

    def details(self, run: str, columns: int) -> Iterator[Part]:
        """Yields the parts of the screen of a run, each as soon as it is read. squeue is called once at most."""

    def logs(self, run: str, errors: bool) -> str:
        """Returns the last lines of rank 0, or with `errors` what looks like an error in the logs of all ranks."""

    def call(self, words: Sequence[str]) -> str:
        """Runs `clusterdp WORDS`, and returns what it prints."""


class Terminal(io.StringIO):
    """Keeps what a verb prints for a terminal, with colours."""

    def isatty(self) -> bool:
        return True


class LocalSource:
    """The runs of this machine. Two threads never call Slurm at once, see commands_of()."""

    host = ""

    def __init__(self, everywhere: bool = False, ask_s: float = Pace.ask_s):
        self._runs = ListedRuns(Wanted(everywhere=everywhere), ask_s=ask_s)
        self._lock = threading.Lock()
        self._environ = dict(os.environ)  # commands_of() changes that of this process for a while

    def list(self) -> Listing:
        with self._lock:
            return self._runs.read()

    def details(self, run: str, columns: int) -> Iterator[Part]:
        return _of_sweep(run, columns, self._lock) if is_sweep(Path(run)) else _of_run(run, columns, self._lock)

    def logs(self, run: str, errors: bool) -> str:
        if is_sweep(Path(run)):
            raise RunError(f"{shown_path(Path(run))}: is a sweep, whose elements have logs: `clusterdp logs RUN/0`.")
        return _logs_of(RunDir(Path(run)), Choice.read(errors=errors, terminal=True))

    def call(self, words: Sequence[str]) -> str:
        command = [sys.executable, "-c", START, PACKAGES, *words]
        done = subprocess.run(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=self._environ)
        return done.stdout.decode(errors="replace").strip()


def _of_run(run: str, columns: int, lock: threading.Lock) -> Iterator[Part]:
    now, colour = time.time(), Colour(Terminal())
    history = read_history(RunDir(Path(run)))
    with lock, commands_of(history.cluster):
        status = current_status(history)
        explained = explanation(history, status, now)
    yield Part("status", "\n".join(status_lines(history, status, now, colour, columns)))
    yield Part("why", "\n".join(why_lines(explained, colour, columns)))
    yield Part("last lines of rank 0", _or_error(lambda: _logs_of(history.run, Choice(last=LAST))))
    from clusterdp.operate.compare.plot import curves_in_text  # loads NumPy: not before the first screen

    yield Part("curve", _or_error(lambda: curves_in_text(history, (), columns)))


def _of_sweep(run: str, columns: int, lock: threading.Lock) -> Iterator[Part]:
    colour, folder = Colour(Terminal()), SweepDir(Path(run))
    with lock, commands_of(read_history(folder.files).cluster):
        found = read_sweep(folder)
    lines = [f"{colour('bold', found.name)}  {counts(found.elements, colour)}  {found.said}".rstrip(), ""]
    yield Part("elements", "\n".join([*lines, *status_table(found.elements, colour, width=columns)]))
    yield Part("why", "\n".join(reason_lines(found.elements, colour, columns, of_all=True)))


def _logs_of(run: RunDir, choice: Choice) -> str:
    out = Terminal()
    show_logs(run, choice, out)
    return out.getvalue()


def _or_error(text: Callable[[], str]) -> str:
    """A run without logs or metrics still has its other parts."""
    try:
        return text()
    except ClusterdpError as error:
        return str(error)
