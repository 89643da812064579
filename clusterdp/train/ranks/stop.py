"""StopSignal: the stop requests that reached this process. Its signal handlers only set a number.

This module imports no torch, so that a process can handle signals before it imports torch. The import of torch takes
seconds, or a minute on a busy NFS, and a preemption during the import must not look like a crash.
"""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from clusterdp.train.argument_names import checked

STOPPED_EXIT = 75  # exit code (EX_TEMPFAIL) of a stopped program without our worker: run the program again to continue
REASONS = {signal.SIGTERM: "term", signal.SIGUSR2: "time"}  # not USR1, which NCCL uses
SAME_S = 5.0  # seconds; end times that differ by less are the same, because Slurm counts whole seconds
LOOK_EVERY_S = 2.0  # seconds between two checks for the file of `clusterdp stop`: it may be on a shared file system


class Stopped(BaseException):
    """Raised when all ranks have agreed to stop and have saved. `except Exception` must not catch it."""

    def __init__(self, reason: str, step: int):
        super().__init__(reason, step)
        self.reason = reason
        self.step = step

    def __str__(self) -> str:
        return f"stopped at step {self.step} ({self.reason})"


class StopSignal:
    """The stop requests that reached this rank. StopSignal only reports requests, because no rank may stop alone (see
    SharedFlags).

    why: the reason of a request to end the run, as passed to request(); None without a request.
    file: the path of the file that `clusterdp stop` writes. Only rank 0 has this path, so that not all ranks check the
    file.
    end_time: end of the job's time, in seconds since the epoch. margin_s: the least time before end_time to stop.
    needed_s: measured seconds for the steps until the agreement, the save and the end of all processes, and a margin.
    ask_end: a function that returns the current end_time, or None if unknown. It is called when the time is up, because
    an administrator may have raised the limit. Only rank 0 has ask_end and end_time: rank 0 asks Slurm, and all ranks
    follow.
    """

    @checked
    def __init__(self, end_time: float | None = None, margin_s: float = 60.0):
        self._seen: dict[int, int] = {int(number): 0 for number in REASONS}
        self._previous: dict[signal.Signals, Any] = {}
        self.needed_s = 0.0
        self.why: str | None = None
        self.file: Path | None = None
        self._look_at = 0.0
        self.end_time: float | None = None
        self.margin_s = 0.0
        self.ask_end: Callable[[], float | None] | None = None
        if end_time is not None:
            self.set_end_time(end_time, margin_s)

    def watch(self, file: Path, *, anew: bool) -> None:
        """Makes the existence of this file ask for a stop. anew: this attempt was started by hand, so that a file which
        exists already has asked the attempt before."""
        if anew:
            file.unlink(missing_ok=True)
        self.file = file

    def set_end_time(self, end_time: float, margin_s: float) -> None:
        # The margin is a quarter of the time at most: with a margin longer than the whole time, no attempt could make a
        # step.
        self.end_time = end_time
        self.margin_s = min(margin_s, max(0.0, end_time - time.time()) / 4)

    @property
    def lead_s(self) -> float:
        """Seconds before the end of the job's time at which this rank asks for the stop."""
        return max(self.margin_s, self.needed_s)

    def request(self, why: str) -> None:
        """Asks for the run to stop and not to be requeued. The first reason is kept."""
        self.why = self.why or why

    def install(self) -> StopSignal:
        """Installs the signal handlers. Call install() in the main thread, as Python requires."""
        for number in REASONS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def restore(self) -> None:
        """Restores the signal handlers from before install(), for example submitit's handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @staticmethod
    def ignore() -> None:
        """Ignores stop signals from now on, because no work is left. While Python exits, it restores the signals'
        default actions; a stop signal would then turn a finished process into a failed process."""
        for number in REASONS:
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> StopSignal:
        return self.install()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen[number] = 1  # the handler does nothing else: no lock, no I/O, no collective

    def name_of(self, reason: str) -> str:
        """Returns the cause of reason `term` or `time` as text for people: SIGTERM, SIGUSR2, or the end of the job's
        time.

        `term` always comes from a signal, on any rank. `time` comes from a signal only if this rank has seen one.
        """
        number = next(number for number, why in REASONS.items() if why == reason)
        return number.name if reason == "term" or self._seen[number] else "end of time"

    def reason(self) -> str | None:
        """Returns this rank's reason to stop: `user` (a request), `term`, `time`, or None."""
        if self.why is None and self.file is not None and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            if self.file.exists():
                self.why = "clusterdp stop"
        if self.why is not None:
            return "user"
        for number, why in REASONS.items():
            if self._seen[number]:
                return why
        return "time" if self._time_is_up() else None

    def _time_is_up(self) -> bool:
        if self.end_time is None or time.time() < self.end_time - self.lead_s:
            return False
        if self.ask_end is not None:
            end = self.ask_end()
            if end is not None and end - self.end_time > SAME_S:
                self.end_time = end
                return self._time_is_up()
            self.ask_end = None  # ask_end() is not called again, because the ranks are about to stop
        return True

    @staticmethod
    @contextmanager
    def shielded() -> Iterator[None]:
        """Shields processes that are started in the with block from the stop signals, because a child inherits the
        signal mask.

        Slurm sends a preemption's TERM to the children of the tasks too. A DataLoader worker would die of TERM, and the
        worker's rank would fail with it, before the rank could save. This process loses no signal: a signal that
        arrives meanwhile is delivered at the end of the block at the latest.
        """
        _kill_shielded_at_exit()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, REASONS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _kill_shielded_at_exit() -> None:
    """Kills the shielded children that are left at exit, just before multiprocessing would send them TERM and wait.

    Such children are workers of an iterator that was not closed. Because these workers block TERM, multiprocessing
    would wait for ever.
    """
    import multiprocessing
    from multiprocessing.util import Finalize

    def kill() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report the kill as an error of the worker
        for child in multiprocessing.active_children():
            child.kill()

    Finalize(None, kill, exitpriority=0)
