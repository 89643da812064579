"""Following a run to its end: what its folder says, often, and what squeue says, rarely.

The folder is enough as long as the run goes well. squeue is asked for what a folder cannot show: that a job ended
without a word (scancel by hand, a node that failed without requeue, a script that could not start).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterdp.errors import SlurmError
from clusterdp.operate.event_order import NewEvents
from clusterdp.operate.queue import RunStatus, ask_squeue, combine
from clusterdp.operate.run_history import RunHistory, read_history
from clusterdp.operate.run_state import RunState
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import Record


@dataclass(frozen=True)
class Pace:
    """Seconds. A controller serves thousands of users: `ask_s` is what it feels of us."""

    poll_s: float = 0.3  # between looks at the run folder
    ask_s: float = 5.0  # between questions to squeue, at least
    late_s: float = 3.0  # how long an event waits for those before it: over NFS one file shows later than another
    settle_s: float = 15.0  # how long squeue must contradict the records before it is believed, for the same reason
    close_s: float = 15.0  # how long the batch script's last word is waited for once the ranks have said `done`
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class RunUpdate:
    """One look. `news`: the events since the last one, in order."""

    history: RunHistory
    status: RunStatus
    news: tuple[Record, ...]
    over: bool


def follow(run: RunDir, pace: Pace | None = None) -> Iterator[RunUpdate]:
    """Ends with the moment that is `over`. SlurmError never ends it: a busy controller answers again."""
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
    """When an ending on record is to be believed."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.seen: tuple[object, ...] = ()
        self.since = 0.0

    def is_sure(self, history: RunHistory) -> bool:
        """At the second look, for a crash that is tried again looks like the last one for an instant.

        The ranks' `done` comes before the batch script's: that is waited for, if it comes, so that whoever takes the
        cluster down next does not cut it off.
        """
        now = self.pace.clock()
        if self.seen != _outline(history):
            self.seen, self.since = _outline(history), now
            return False
        return history.closed or now - self.since >= self.pace.close_s


class _QueueWatch:
    """squeue's last answer, how old it is, and since when it has contradicted the records."""

    def __init__(self, pace: Pace):
        self.pace = pace
        self.asked = float("-inf")
        self.wait = pace.ask_s
        self.status: RunStatus | None = None
        self.since: float | None = None  # when it began to say that the attempt is over, of which there is no record
        self.known: tuple[object, ...] = ()  # what the records said when it was asked

    def combine(self, history: RunHistory) -> RunStatus:
        if history.state.over:
            self.since = None
            return RunStatus(history.state, history.why)
        now = self.pace.clock()
        if now - self.asked >= self.wait:
            self.asked = now
            self._ask(history, now)
        if self.status is None or self.known != _outline(history):  # what has been heard since is newer
            return RunStatus(history.state, history.why)
        if self.since is not None and now - self.since < self.pace.settle_s:
            return RunStatus(history.state, "ended, says Slurm; its last words may come yet", self.status.row)
        return self.status

    def _ask(self, history: RunHistory, now: float) -> None:
        said_before = self.status
        if self.known != _outline(history):
            self.since = None
        self.known = _outline(history)
        try:
            rows = ask_squeue(history)
        except SlurmError:
            # Nothing is concluded from silence, and a controller in trouble is asked less and less.
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
    """squeue knows of an end that is not on record: for good, or the job waits for its next attempt."""
    waits = status.state is RunState.WAITING and history.state is RunState.RUNNING
    return status.state.over or waits


def _outline(history: RunHistory) -> tuple[object, ...]:
    return history.state, history.jobs, len(history.attempts)
