"""AttemptRecord: the records of an attempt: events, metrics, times, and the step of its newest checkpoint."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from clusterdp.config.tree import MetricsConfig
from clusterdp.rundir import Ledger, RunDir, write_durably
from clusterdp.rundir.names import LOCAL
from clusterdp.train.output.best_effort import BestEffortFile, retry_while_full
from clusterdp.train.output.metric_log import MetricLog

if TYPE_CHECKING:
    from clusterdp.checkpoint import Commit

SHORTEST_S = 2.0  # seconds between two reports at first; later a twentieth of the elapsed time: 190 reports in a day


class AttemptRecord:
    """The records of an attempt, written by rank 0 of a run that has a folder. On other ranks, and without a run
    folder, all methods do nothing. On a full disk, records are lost and the training continues.

    run, attempt: the run folder and the attempt's name, on all ranks. folder: the attempt's folder, on all ranks; None
    without a run folder. step: the run's step, over all loops. time: the seconds spent on each kind of work. phase: the
    name of the running loop; empty if it has no name.
    """

    def __init__(self, run: RunDir | None, attempt: str, metrics: MetricsConfig, *, writes: bool):
        self.run, self.attempt = run, attempt
        self.folder = run.attempt(attempt) if run is not None else None
        self.step = 0
        self.phase = ""
        self._place: dict[str, Any] = {}  # the fields of the last step's record
        self.metrics = MetricLog(None)
        self.time = TimeSpent(lambda **seconds: self.event("spent", step=self.step, **seconds))
        self._ledger: Ledger | None = None
        self._files: dict[Path, BestEffortFile] = {}
        if run is None or not writes:
            return
        path = run.attempt(attempt).path
        retry_while_full(lambda: path.mkdir(parents=True, exist_ok=True), path)  # the batch script may have made it
        self._ledger = Ledger(run, attempt, "rank0")
        if attempt.startswith(LOCAL):  # else the batch program records the start
            self.event("started", nodes=socket.gethostname(), pid=os.getpid())
        self.metrics = MetricLog(run.metrics / f"{attempt}.jsonl", metrics.every_s)
        if metrics.to:
            from clusterdp.train.output.sinks import open_sinks

            self.metrics.sinks += open_sinks(metrics.to, run, metrics.options)

    @property
    def phase_field(self) -> dict[str, str]:
        """The phase as a field of records; empty if the phase has no name."""
        return {"phase": self.phase} if self.phase else {}

    def step_done(self, step: int, total: int | None, epoch: int, values: dict[str, Any] | None) -> None:
        """Records a step of the run, see MetricLog.step(). total: the number of steps; None if it is unknown. values:
        None if they come later, by values_of_step(), or not at all."""
        self.step = step
        self._place = {"step": step, "total": total, "epoch": epoch, **self.phase_field}
        if values is not None:
            self.metrics.step(self._place, values)
        self.time.step()

    def values_of_step(self, values: dict[str, Any]) -> None:
        """Records what the last step has logged."""
        self.metrics.step(self._place, values)

    def log(self, **values: Any) -> None:
        """Writes a record of the metrics at once: a result such as an accuracy."""
        self.metrics.write(step=self.step, **self.phase_field, **values)

    def event(self, event: str, **fields: Any) -> None:
        """Writes a line of the run's ledger."""
        if self._ledger is not None:
            with self._best_effort(self._ledger.path):
                self._ledger.write(event, **fields)

    def committed(self, commit: Commit) -> None:
        """Records the commit of a checkpoint. Called on rank 0 after each commit."""
        if self.folder is not None:
            with self._best_effort(self.folder.saved):
                write_durably(self.folder.saved, f"{commit.step}\n")
        told = {"seconds": round(commit.seconds, 4), "bytes": commit.bytes, **self.phase_field}
        self.event("saved", step=commit.step, **told)

    def stopped(self, reason: str) -> None:
        """Records that all ranks have stopped here, and writes the remaining times and metrics."""
        self.time.tell()
        self.event("stopped", step=self.step, reason=reason)
        self.metrics.flush()  # metrics come last, because a server that does not answer may take the rest of the time

    def write_times(self, report: dict[str, Any]) -> None:
        """Writes a Stopwatch report to the attempt's folder."""
        if self.folder is not None and self._ledger is not None:
            with self._best_effort(self.folder.times):
                write_durably(self.folder.times, json.dumps(report, indent=1) + "\n")

    def _best_effort(self, path: Path) -> BestEffortFile:
        return self._files.setdefault(path, BestEffortFile(path))


class TimeSpent:
    """Seconds spent on each kind of work, which add up to the time since the object was created. Work before the end of
    the first step, such as a compilation, counts as start-up.

    A program without job.loop() counts no steps, and no times are reported.
    """

    def __init__(self, report: Callable[..., None]):
        self.seconds = dict.fromkeys(("startup", "restore", "steps", "saves", "evaluation"), 0.0)
        self._report = report  # a function that is called as report(startup_s=.., restore_s=.., ...)
        self._stepped = False
        self._kind = "startup"
        self._began = self._at = monotonic()
        self._due = 0.0

    def turn(self, kind: str) -> None:
        """Counts the time from here on as `kind`."""
        now = monotonic()
        self.seconds[self._kind] += now - self._at
        self._at = now
        self._kind = kind if self._stepped or kind != "steps" else "startup"

    @contextmanager
    def during(self, kind: str) -> Iterator[None]:
        before = self._kind
        self.turn(kind)
        try:
            yield
        finally:
            self.turn(before)

    def took(self, kind: str, seconds: float) -> None:
        """Counts the last `seconds` as `kind`, whatever the current kind is."""
        self.seconds[kind] += seconds
        self._at += seconds

    def step(self) -> None:
        """Ends a step, and reports the times if a report is due."""
        if not self._stepped:
            self._stepped = True
            self.turn("steps")
        now = monotonic()
        if now >= self._due:
            self._due = now + max(SHORTEST_S, (now - self._began) / 20)
            self.tell()

    def tell(self) -> None:
        if self._stepped:
            self.turn(self._kind)
            self._report(**{f"{kind}_s": round(seconds, 3) for kind, seconds in self.seconds.items()})
