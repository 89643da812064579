"""follow(): yields updates of a run until its end. The run folder is read often, and squeue is asked rarely. While the
run goes well, the folder has all that happens. Only squeue shows that a job ended without a record (scancel by hand, a
node that failed without requeue, a script that could not start).
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
    """How often follow() looks and how long it waits, in seconds. Slurm's controller serves thousands of users, and is
    therefore asked only every `ask_s` seconds."""

    poll_s: float = 0.3  # pause between two reads of the run folder
    ask_s: float = 5.0  # least time between two calls of squeue
    late_s: float = 3.0  # wait of an event for earlier events: NFS may show one file later than another
    settle_s: float = 15.0  # NFS may show records late: squeue counts once it contradicts them for this time
    close_s: float = 15.0  # wait for the batch script's last record, once the ranks have recorded `done`
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class RunUpdate:
    """The state of the run at one poll of follow()."""

    history: RunHistory
    status: RunStatus
    news: tuple[Record, ...]  # the events that are new at this poll, in order
    over: bool


def follow(run: RunDir, pace: Pace | None = None) -> Iterator[RunUpdate]:
    """Yields an update for each poll, until an update has `over`. SlurmError does not end the updates: a busy
    controller will answer again."""
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
    """Decides whether an end in the records is final."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.seen: tuple[object, ...] = ()
        self.since = 0.0

    def is_sure(self, history: RunHistory) -> bool:
        """Returns True at the second poll or later: for an instant, a crash with a retry looks like a final crash.

        The ranks record `done` earlier than the batch script. The watch waits for the batch script's record, because
        the user may stop the cluster after the watch.
        """
        now = self.pace.clock()
        if self.seen != _outline(history):
            self.seen, self.since = _outline(history), now
            return False
        return history.closed or now - self.since >= self.pace.close_s


class _QueueWatch:
    """Keeps squeue's last answer, the time of that answer, and the time since which squeue has contradicted the
    records."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.asked = float("-inf")
        self.wait = pace.ask_s
        self.status: RunStatus | None = None
        self.since: float | None = None  # the time since which squeue contradicts the records
        self.known: tuple[object, ...] = ()  # outline of the records at the last squeue

    def combine(self, history: RunHistory) -> RunStatus:
        if history.state.over:
            self.since = None
            return RunStatus(history.state, history.why)
        now = self.pace.clock()
        if now - self.asked >= self.wait:
            self.asked = now
            self._ask(history, now)
        if self.status is None or self.known != _outline(history):  # the records are newer than squeue's answer
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
            # If squeue does not answer, nothing is known about the job. A controller in trouble is asked less and less
            # often.
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
    """Returns whether squeue shows an end that is not recorded: the job is over, or waits for its next attempt."""
    waits = status.state is RunState.WAITING and history.state is RunState.RUNNING
    return status.state.over or waits


def _outline(history: RunHistory) -> tuple[object, ...]:
    return history.state, history.jobs, len(history.attempts)
