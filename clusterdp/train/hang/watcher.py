"""The watcher of one rank: checks whether the rank makes progress, in a thread of the node's agent (see NodeWatch). It
imports no torch, and imports the modules for a silent rank only when they are needed.

    the page changes             the rank makes progress; checked 40 times in hang_after_s, and at least once a second
    silent for hang_after_s      sends a note: the rank's position, stacks and state; again after each hang_after_s;
                                 takes it back when the rank makes progress again
    the watcher did not run      (a suspended job, a closed laptop) this time does not count as silence of the rank; nor
                                 does the time in which the rank was stopped, once it continues

See Decision for what follows from the notes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp.train.hang.page import FIRST, LONG, PHASE, STEP, phase_name
from clusterdp.train.hang.watched_rank import DUMP_S, TIMED_OUT, WatchedRank

if TYPE_CHECKING:
    from clusterdp.train.hang.note import Note

LEAST_S = 300.0  # lower limit of hang_after_s, if hang_after_s is derived from the steps
TIMES = 5  # hang_after_s, if derived, is this many times the longest step so far
SHARE = 0.9  # part of a collective's time-out after which a phase that may take long is reported
LONGEST_TICK_S = 1.0
LATE_S = 2.0  # a longer pause of this thread does not count as silence of the rank
SUSPENDED_S = 10.0  # a longer pause of this thread is a suspension; a busy machine causes shorter pauses


class Watcher:
    """Watches one rank: look() is called repeatedly. send: sends the rank's note; None takes it back. clock: a function
    that returns the time in seconds."""

    def __init__(
        self, rank: WatchedRank, send: Callable[[int, Note | None], None], clock: Callable[[], float] = time.monotonic
    ):
        self.order, self.rank, self.send, self.clock = rank.order, rank, send, clock
        self.longest = 0.0  # seconds of the longest step so far
        self.now = self._looked = self._last_sign = self._last_step = clock()
        self.seen = rank.numbers()
        self.cpu_s = rank.cpu_s()
        self._is_step = False  # since the last count of steps, the rank was only in a step, and in no long phase
        self._was_stopped = False
        self._next_note = 0.0  # seconds of silence before the next note; 0 if there is none of this silence
        self._over, self._in_order = threading.Event(), False

    @property
    def hang_after_s(self) -> float:
        if self.order.hang_after_s is not None:
            return self.order.hang_after_s
        return max(LEAST_S, min(TIMES * self.longest, SHARE * self.order.timeout_s))

    @property
    def tick_s(self) -> float:
        return min(LONGEST_TICK_S, self.hang_after_s / 40)

    @property
    def silent_s(self) -> float:
        return self.now - self._last_sign

    def run(self) -> None:
        """Looks until end() is called."""
        try:
            while not self._over.wait(self.tick_s):
                self.look()
            if not self._in_order:
                self.rank_has_died()
        finally:
            self._over.wait()  # the rank may still be there after an error of this thread
            self.rank.close()

    def end(self, *, in_order: bool) -> None:
        self._in_order = in_order
        self._over.set()

    def look(self) -> None:
        self.now = self.clock()
        slept_s = self.now - self._looked
        if slept_s > max(10 * self.tick_s, SUSPENDED_S):
            self._last_sign = self.now  # this process was suspended, and probably the rest of the job, too
            if self.order.rank == 0:
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
        from clusterdp.rundir import Ledger, RunDir

        with suppress(OSError):
            ledger = Ledger(RunDir(Path(self.order.run_dir)), self.order.attempt, f"hang{self.order.rank}")
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
        long = SHARE * self.order.timeout_s if self.phase in LONG else 0.0
        return max(self.hang_after_s, long)

    def _be_silent(self) -> None:
        silent, limit = self.silent_s, self.limit_s
        if silent >= TIMED_OUT * self.order.timeout_s:
            self.rank.keep_dump()  # before NCCL ends the rank
        if silent >= self._next_note:
            rounds = int(silent / self.hang_after_s)
            due = self.hang_after_s * (rounds + 1)
            self._next_note = min(due, limit) if silent < limit else due
            self.send(self.order.rank, self._note(rounds, limit))

    def _note(self, rounds: int, limit: float) -> Note:
        from clusterdp.train.hang.note import Note

        deadline, dumped = time.monotonic() + DUMP_S, self.rank.request_dump()
        stack, children = self.rank.stacks()
        record = self.rank.flight_record(dumped, deadline) if dumped is not None else None
        before, now = self.cpu_s, self.rank.cpu_s()
        return Note(
            rank=self.order.rank,
            node=self.order.node,
            pid=self.order.pid,
            thread=self.order.thread,
            step=self.seen[STEP],
            phase=self.phase,
            order=self.seen[PHASE],
            silent_s=self.silent_s,
            limit_s=limit,
            hang_after_s=self.hang_after_s,
            round=rounds,
            state=self.rank.state(),
            wchan=self.rank.wchan(),
            cpu_s=now - before if now is not None and before is not None else None,
            stack=stack,
            children=children,
            collective=record.collective if record else "",
            pending=record.pending if record else None,
        )

    def _take_back(self) -> None:
        if self._next_note:
            self._next_note = 0.0
            self.send(self.order.rank, None)
            self.rank.forget_dump()

    def rank_has_died(self) -> None:
        """Records a hang if the rank died after a long silence: NCCL ends a process whose collective has timed out."""
        if self._next_note:
            self.rank.keep_dump()
            if self.silent_s >= TIMED_OUT * self.order.timeout_s:
                from clusterdp.train.hang.note import leave_hung

                leave_hung(self.rank.attempt)
