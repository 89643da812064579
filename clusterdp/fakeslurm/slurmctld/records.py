"""Writes every change: to the journal for the next daemon, to accounting for sacct, to the history for people."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusterdp.fakeslurm.core.model import JobRecord, Model
from clusterdp.fakeslurm.core.paths import HISTORY
from clusterdp.fakeslurm.slurmctld.journal import Journal, compact
from clusterdp.fakeslurm.slurmdbd.accounting import Accounting
from clusterdp.fakeslurm.slurmdbd.history import HistoryFile


class Records:
    """The writer. If a job changes several times in one turn, only the result is written."""

    def __init__(
        self, model: Model, accounting: Accounting, journal: Journal, folder: Path, clock: Callable[[], float]
    ):
        self.accounting, self._model, self._journal, self._clock = accounting, model, journal, clock
        self.history = HistoryFile(folder / HISTORY, model, clock)
        self._changed: dict[int, JobRecord] = {}

    def job(self, job: JobRecord, word: str | None = None) -> None:
        """Record a change of a job. With `word`, accounting gets this state even if the job changes again in the same
        turn.
        """
        self._model.jobs.note(job)
        self.history.job(job)
        self._changed[job.id] = job
        if word is not None:
            self._write(self._changed.pop(job.id), word)

    def _write(self, job: JobRecord, word: str | None = None) -> None:
        self._journal.write("job", job.id, job)
        due = self._clock() + self._lag_s(job)
        for entry in (
            self.accounting.note(self._model, job, due, word),
            self.accounting.note_part(self._model, job, due),
        ):
            if entry:
                self._journal.write("row", *entry)

    def _lag_s(self, job: JobRecord) -> float:
        """The seconds until accounting knows of the change."""
        settings = self._model.settings
        at_once = settings.release.accounts_held_jobs and job.waits and job.held
        return 0 if at_once else settings.accounting_lag_s

    def number(self) -> int:
        """A new job id."""
        number = self._model.new_id()
        self._journal.write("next_id", 0, number)
        return number

    def node(self, name: str) -> None:
        self._journal.write("node", name, self._model.nodes[name])

    def partition(self, name: str) -> None:
        self._journal.write("partition", name, self._model.partitions[name])

    def clock(self) -> None:
        self._journal.write("epoch", 0, self._model.epoch)

    def ahead(self) -> None:
        self._journal.write("ahead", 0, self._model.ahead_s)

    def faults(self) -> None:
        self._journal.write("faults", 0, self._model.faults)

    def forget(self, job: JobRecord) -> None:
        self.flush()
        self.history.forget(job.id)

    def flush(self) -> bool:
        """Have all changes on disk; to be called before anybody is answered. False: the disk is full and nothing may be
        started.
        """
        changed, self._changed = self._changed, {}
        for job in changed.values():
            self._write(job)
        self.history.flush()
        return self._journal.flush()

    def tidy(self) -> None:
        """Rewrite the journal when it has grown."""
        if self._journal.grown and self.flush():
            self._journal.close()
            compact(self._journal.path, self._model, self.accounting)
            self._journal = Journal(self._journal.path)

    def close(self) -> None:
        self._journal.close()
        self.history.close()
