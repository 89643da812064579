"""Following a run to its end. The run folder is read often, squeue is asked rarely.

The folder is enough as long as the run goes well. squeue shows what the folder cannot: a job that ended without a
record (scancel by hand, a node that failed without requeue, a script that could not start).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterdp.errors import SlurmError
from clusterdp.operate.queue.run_status import RunStatus, ask_squeue, combine
from clusterdp.operate.record.event_order import NewEvents
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import Record


@dataclass(frozen=True)
class Pace:
    """Times in seconds. A controller serves thousands of users: `ask_s` is how often we ask it."""

    poll_s: float = 0.3  # between looks at the run folder
    ask_s: float = 5.0  # between questions to squeue, at least
    late_s: float = 3.0  # how long an event waits for those before it: over NFS one file shows later than another
    settle_s: float = 15.0  # how long squeue must contradict the records before it is believed, for the same reason
    close_s: float = 15.0  # how long to wait for the batch script's last record once the ranks have recorded `done`
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class RunUpdate:
    """The result of one look at a run. `news`: the events since the look before, in order."""

    history: RunHistory
    status: RunStatus
    news: tuple[Record, ...]
    over: bool


def follow(run: RunDir, pace: Pace | None = None) -> Iterator[RunUpdate]:
    """Ends with the update that is `over`. SlurmError never ends it: a busy controller will answer again."""
    pace = pace or Pace()
    queue, ending = _QueueWatch(pace), _EndingWatch(pace)
    news = NewEvents(pace.late_s)
    while True:
        history = read_history(run)
        status = queue.combine(history)
        over = ending.is_sure(history) if history.state.over else status.state.over
        yield RunUpdate(history, status, news.take(history, pace.clock(), everything=over), over)
        if over:
            return
        pace.sleep(pace.poll_s)


class _EndingWatch:
    """Decides when an ending on record is final."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.seen: tuple[object, ...] = ()
        self.since = 0.0

    def is_sure(self, history: RunHistory) -> bool:
        """True at the second look: for an instant, a crash that is tried again looks like the last one.

        The ranks record `done` before the batch script does. The batch script's record is waited for, so that a cluster
        that is taken down next does not cut it off.
        """
        now = self.pace.clock()
        if self.seen != _outline(history):
            self.seen, self.since = _outline(history), now
            return False
        return history.closed or now - self.since >= self.pace.close_s


class _QueueWatch:
    """squeue's last answer, its age, and since when it has contradicted the records."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.asked = float("-inf")
        self.wait = pace.ask_s
        self.status: RunStatus | None = None
        self.since: float | None = None  # since when it has called the attempt over without a record of that
        self.known: tuple[object, ...] = ()  # the outline of the records when squeue was asked

    def combine(self, history: RunHistory) -> RunStatus:
        if history.state.over:
            self.since = None
            return RunStatus(history.state, history.why)
        now = self.pace.clock()
        if now - self.asked >= self.wait:
            self.asked = now
            self._ask(history, now)
        if self.status is None or self.known != _outline(history):  # the records are newer than the answer
            return RunStatus(history.state, history.why)
        if self.since is not None and now - self.since < self.pace.settle_s:
            return RunStatus(history.state, "ended, Slurm says; its last records may still come", self.status.row)
        return self.status

    def _ask(self, history: RunHistory, now: float) -> None:
        said_before = self.status
        if self.known != _outline(history):
            self.since = None
        self.known = _outline(history)
        try:
            rows = ask_squeue(history)
        except SlurmError:
            # No answer proves nothing, and a controller in trouble is asked less and less often.
            self.wait = min(2 * self.wait, 60.0)
            self.since = None
            but = history.unread or "squeue does not answer"
            self.status = RunStatus(history.state, f"{history.state.value}, but {but}")
            return
        self.wait = self.pace.ask_s
        self.status = None if rows is None else combine(history, rows)
        if self.status is None or not _contradicts(self.status, history):
            self.since = None
        elif self.since is None or said_before is None or said_before.state is not self.status.state:
            self.since = now


def _contradicts(status: RunStatus, history: RunHistory) -> bool:
    """Whether squeue knows of an end that is not on record: the job is over, or waits for its next attempt."""
    waits = status.state is RunState.WAITING and history.state is RunState.RUNNING
    return status.state.over or waits


def _outline(history: RunHistory) -> tuple[object, ...]:
    return history.state, history.jobs, len(history.attempts)
