"""LiveRun: the present step and processes of a run, from its ranks' processes and its output."""

from __future__ import annotations

import signal
import time

from clusterdp.batch.files.rank_logs import log_files, log_of
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.observe import processes
from clusterdp.rehearse.observe.printed_steps import GrowingLog, last_step
from clusterdp.rundir import Attempt, RunDir

RANKS_S = 0.5  # seconds between two searches for the ranks' processes, because a search reads all processes


class LiveRun:
    """The present state of a run's newest attempt."""

    def __init__(self, run: RunDir, *, counter: str = "", here: bool = True):
        """`counter`: the counter of the run's printed steps (printed_steps.py). `here`: whether the ranks run on this
        machine."""
        self.run = run
        self._counter = counter
        self._here = here
        self._ranks: dict[int, list[int]] = {}
        self._ranks_of = ""
        self._ranks_at = 0.0
        self._page_file = ""  # rank 0's
        self._growing: dict[str, GrowingLog] = {}  # by attempt
        self.first_steps: dict[str, float] = {}  # by attempt: when a printed step was first seen, in seconds since 1970

    @property
    def attempt(self) -> Attempt | None:
        found = self.run.attempts()
        return found[-1] if found else None

    def ranks(self, fresh: bool = False) -> dict[int, list[int]]:
        """Returns the pids of each rank, parents before children. Without `fresh`, the result may be RANKS_S old."""
        attempt = self.attempt
        name = attempt.name if attempt else ""
        now = time.monotonic()
        if fresh or name != self._ranks_of or now - self._ranks_at > RANKS_S:
            self._ranks, self._ranks_of, self._ranks_at = processes.ranks_of(self.run.path), name, now
        return self._ranks

    def pids(self) -> list[int]:
        """Returns the pids of the processes of all ranks."""
        return [pid for pids in self.ranks(fresh=True).values() for pid in pids]

    def page(self) -> processes.Page | None:
        """Returns the page of rank 0.

        The path of the page's file is kept, because a drill that waits for a phase calls `page` 2,000 times a second.
        """
        page = processes.read_page(self._page_file) if self._page_file else None
        if page is None and (ranks := self.ranks()):
            self._page_file = processes.page_file(ranks[min(ranks)])
            page = processes.read_page(self._page_file)
        return page

    def phase(self) -> int | None:
        page = self.page()
        return page.phase if page else None

    def step(self) -> int | None:
        """Returns the present step of the newest attempt: from rank 0's page, else from the ledger, else from rank 0's
        output.
        """
        page = self.page()
        if page is not None:
            return page.step
        attempt = self.attempt
        if attempt is None:
            return None
        if not self._here:
            history = read_history(self.run)
            if history.attempts and history.attempts[-1].name == attempt.name and history.step is not None:
                return history.step
        log = log_of(log_files(str(attempt.logs)), 0)
        if log is None:
            step = None
        elif self._counter:
            step = last_step(log, self._counter)
        else:
            step = self._growing.setdefault(attempt.name, GrowingLog(log)).last_step()
        if step is not None:
            self.first_steps.setdefault(attempt.name, time.time())
        return step

    def trained_s(self) -> float:
        """Returns for how many seconds the ranks have run, by the mtime of their log folder."""
        attempt = self.attempt
        try:
            return time.time() - attempt.logs.stat().st_mtime if attempt else 0.0
        except OSError:
            return 0.0

    def handlers(self, number: signal.Signals = signal.SIGTERM) -> dict[str, str]:
        """Returns, by rank, the effect of this signal, in the words of processes.on_signal()."""
        told = {str(rank): processes.on_signal(pids, number) for rank, pids in self.ranks(fresh=True).items()}
        return {rank: word for rank, word in told.items() if word}

    def shells(self, number: signal.Signals = signal.SIGTERM) -> dict[str, str]:
        """Returns, by rank, the name of a process that the signal kills, though a program below handles the signal."""
        told = {str(rank): processes.dies_above(pids, number) for rank, pids in self.ranks().items()}
        return {rank: word for rank, word in told.items() if word}
