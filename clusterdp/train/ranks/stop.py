"""StopSignal: whether this process has been asked to stop. Its signal handlers only set a number.

This module imports no torch, so that a process can be ready for signals before it loads it: that takes seconds, on a
busy NFS a minute, and a preemption in that window must not look like a crash.
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

STOPPED_EXIT = 75  # of a bare run that was stopped: EX_TEMPFAIL, run it again and it goes on
REASONS = {signal.SIGTERM: "term", signal.SIGUSR2: "time"}  # NCCL takes USR1 for itself
SAME_S = 5.0  # Slurm counts the time that is left in whole seconds
LOOK_EVERY_S = 2.0  # at the file of `clusterdp stop`, which may be on a shared file system


class Stopped(BaseException):
    """Raised when all ranks have agreed to stop and have saved. `except Exception` must not catch it."""

    def __init__(self, reason: str, step: int):
        super().__init__(reason, step)
        self.reason = reason
        self.step = step

    def __str__(self) -> str:
        return f"stopped at step {self.step} ({self.reason})"


class StopSignal:
    """The stop requests that reached this rank. It only reports: one rank must not stop alone (see SharedFlags).

    why: of a request to end the run: what request() was told; None as long as there is none.
    file: `clusterdp stop` writes it. Only rank 0 has one, so that a thousand ranks do not look at it.

    end_time: when the job's time ends, in seconds since the epoch. margin_s: the least time before that to stop.
    needed_s: what the steps until the agreement, the save and the end of all processes are measured to take, and some.
    ask_end: returns end_time as it is by now, or None if that is not known. It is called when the time is up, because
    an administrator may have raised the limit. Only rank 0 has it, and an end_time: one rank asks Slurm, and all obey.
    """

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

    def set_end_time(self, end_time: float, margin_s: float) -> None:
        # A margin longer than the whole time would let no attempt make a step: it takes a quarter of it at most.
        self.end_time = end_time
        self.margin_s = min(margin_s, max(0.0, end_time - time.time()) / 4)

    @property
    def lead_s(self) -> float:
        """How long before the end of the time this rank asks for the stop."""
        return max(self.margin_s, self.needed_s)

    def request(self, why: str) -> None:
        """The run is to stop, and not to be requeued. The first reason stays."""
        self.why = self.why or why

    def install(self) -> StopSignal:
        """Main thread only, as Python wants it."""
        for number in REASONS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def restore(self) -> None:
        """Puts back the handlers from before install() (submitit has its own)."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @staticmethod
    def ignore() -> None:
        """Call it when nothing is left to do. While Python exits, signals have their default action again, and one that
        arrives then would turn a finished process into a failed one."""
        for number in REASONS:
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> StopSignal:
        return self.install()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._seen[number] = 1  # and nothing else: no lock, no I/O, no collective

    def name_of(self, reason: str) -> str:
        """The cause of `term` or `time`, for people to read: SIGTERM, SIGUSR2, or the end of the job's time.

        `term` comes from a signal alone, on whichever rank; `time` from a signal only if this rank has seen one.
        """
        number = next(number for number, why in REASONS.items() if why == reason)
        return number.name if reason == "term" or self._seen[number] else "end of time"

    def reason(self) -> str | None:
        """`user` (a request), `term`, `time`, or None: why this rank would stop."""
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
            self.ask_end = None  # the answer is final: the ranks are about to stop
        return True

    @staticmethod
    @contextmanager
    def shielded() -> Iterator[None]:
        """Processes started in here never see the stop signals: their mask is inherited, by fork and by exec.

        Slurm sends a preemption's TERM to the children of the tasks too. A DataLoader worker dies of it, and the rank
        with it, before it could save. This process misses none: what comes meanwhile is delivered at the end of the
        block, if not before.
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

    They block TERM, so that wait would not end. They are workers of an iterator that was not closed.
    """
    import multiprocessing
    from multiprocessing.util import Finalize

    def kill() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would take it for an error of the worker's
        for child in multiprocessing.active_children():
            child.kill()

    Finalize(None, kill, exitpriority=0)
