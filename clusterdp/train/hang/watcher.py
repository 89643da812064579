"""The watcher of one rank: a process that checks whether the rank makes progress. The watcher imports no torch, and
imports the modules for a silent rank only when they are needed.

    the page changes             the rank makes progress; checked 40 times in hang_after_s, and at least once a second
    silent for hang_after_s      see Silence
    the watcher did not run      (a suspended job, a closed laptop) this time does not count as silence of the rank; nor
                                 does the time in which the rank was stopped, once it continues

The watcher ends with its rank: at the end of the pipe that is its standard input, or when its parent changes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterdp.train.hang.page import FIRST, LONG, PHASE, STEP, phase_name
from clusterdp.train.hang.watched_rank import TIMED_OUT, WatchedRank, WatchOrder

if TYPE_CHECKING:
    from clusterdp.train.hang.silence import Silence

LEAST_S = 300.0  # lower limit of hang_after_s, if hang_after_s is derived from the steps
TIMES = 5  # hang_after_s, if derived, is this many times the longest step so far
SHARE = 0.9  # part of a collective's time-out after which a phase that may take long is reported
LONGEST_TICK_S = 1.0
LATE_S = 2.0  # a longer pause of this process does not count as silence of the rank
SUSPENDED_S = 10.0  # a longer pause of this process is a suspension; a busy machine causes shorter pauses
IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Watcher:
    """Watches one rank: look() is called repeatedly. clock: a function that returns the time in seconds."""

    def __init__(self, task: WatchOrder, rank: WatchedRank, clock: Callable[[], float] = time.monotonic):
        self.task, self.rank, self.clock = task, rank, clock
        self.longest = 0.0  # seconds of the longest step so far
        self.now = self._looked = self._last_sign = self._last_step = clock()
        self.seen = rank.numbers()
        self.cpu_s = rank.cpu_s()
        self._is_step = False  # since the last count of steps, the rank was only in a step, and in no long phase
        self._was_stopped = False
        self._silence: Silence | None = None

    @property
    def hang_after_s(self) -> float:
        if self.task.hang_after_s is not None:
            return self.task.hang_after_s
        return max(LEAST_S, min(TIMES * self.longest, SHARE * self.task.timeout_s))

    @property
    def tick_s(self) -> float:
        return min(LONGEST_TICK_S, self.hang_after_s / 40)

    @property
    def silent_s(self) -> float:
        return self.now - self._last_sign

    def look(self) -> None:
        self.now = self.clock()
        slept_s = self.now - self._looked
        if slept_s > max(10 * self.tick_s, SUSPENDED_S):
            self._last_sign = self.now  # this process was suspended, and probably the rest of the job, too
            if self.task.rank == 0:
                self._note_suspension(slept_s)
        elif slept_s > max(10 * self.tick_s, LATE_S):
            # The machine is busy, and the rank may have been late as well. The silence before the pause still counts:
            # with a pause in each hang_after_s, a stopped rank was not reported at all.
            self._last_sign += slept_s
        numbers, stopped = self.rank.numbers(), self.rank.is_stopped()
        if numbers != self.seen:
            self._note_sign(numbers)
        elif self._was_stopped and not stopped:
            self._last_sign = self.now
            self._take_back()
        elif self.silent_s >= self.hang_after_s:
            self._be_silent()
        self._was_stopped = stopped
        self._looked = self.clock()

    def _note_suspension(self, seconds: float) -> None:
        """Records a suspension, whose time `clusterdp goodput` leaves out: Slurm does not count this time either."""
        from pathlib import Path

        from clusterdp.rundir import Ledger, RunDir

        with suppress(OSError):
            ledger = Ledger(RunDir(Path(self.task.run_dir)), self.task.attempt, f"hang{self.task.rank}")
            ledger.write("suspended", seconds=round(seconds, 3))

    def _note_sign(self, numbers: tuple[int, ...]) -> None:
        if numbers[STEP] != self.seen[STEP]:
            if self._is_step:
                self.longest = max(self.longest, self.now - self._last_step)
            self._is_step, self._last_step = True, self.now
        self.seen, self._last_sign, self.cpu_s = numbers, self.now, self.rank.cpu_s()
        if self.phase in LONG:
            self._is_step = False
        self._take_back()

    @property
    def phase(self) -> str:
        return phase_name(self.seen[PHASE], first=self.seen[STEP] == self.seen[FIRST])

    @property
    def limit_s(self) -> float:
        """Seconds for which the rank may be silent in its phase."""
        long = SHARE * self.task.timeout_s if self.phase in LONG else 0.0
        return max(self.hang_after_s, long)

    def _be_silent(self) -> None:
        if self._silence is None:
            from clusterdp.train.hang.silence import Silence

            self._silence = Silence(self)
        self._silence.look()

    def _take_back(self) -> None:
        if self._silence is not None:
            self._silence.is_over()
            self._silence = None

    @property
    def has_killed(self) -> bool:
        return self._silence is not None and self._silence.has_killed

    def rank_has_died(self) -> None:
        """Records a hang if the rank died after a long silence: NCCL ends a process whose collective has timed out."""
        if self._silence is not None and self.silent_s >= TIMED_OUT * self.task.timeout_s:
            self._silence.keep_dump()
            self._silence.leave_hung()


def main(words: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    task = WatchOrder(**json.loads(words[0]))
    watcher = Watcher(task, WatchedRank(task))
    try:
        if _watch(watcher):
            watcher.rank_has_died()
    finally:
        if os.path.isdir(task.dump_folder):
            from clusterdp.train.hang import flight_record

            flight_record.remove(task.dump_folder)


def _watch(watcher: Watcher) -> bool:
    """Watches until the rank has ended. Returns whether it died, or was killed; False if it ended in order."""
    while os.getppid() == watcher.task.pid and not watcher.has_killed:
        if select.select([0], [], [], watcher.tick_s)[0]:
            return not os.read(0, 1)
        watcher.look()
    return True
