"""SaveSchedule: when a loop saves, whether it waits for the disk, and what a save that fails comes to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clusterdp.checkpoint import CheckpointError, ClaimLost, Commit, LostContact, StateError
from clusterdp.train.dist.shared_flags import Agreed
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle

LAST_UPLOAD_S = 600.0  # nobody waits for a store longer than that
LAST_CHANCE_S = 600.0  # so long is a save tried again that an attempt would end without
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
Moment = tuple[int, int]  # steps, and epochs that are closed: what comes at an epoch's end changes the state, too


class SaveSchedule:
    """Of one loop, whose steps they count; a no-op if the run has no place for checkpoints. All methods are collective.

    Every so many steps, or seconds by rank 0's clock, the state is copied and written while the training goes on; the
    control word tells when all ranks have written, and that is when it is committed. What is due while a save is on its
    way is skipped. now() waits for the disk: before a stop, and at the end.

    A periodic save that fails is tried again at the next period. After more failures in a row than checkpoint.
    max_failures the training does not go on before one has succeeded, which is tried for LAST_CHANCE_S; so is one that
    now() does, for what it would save is lost when the attempt ends without it.
    """

    def __init__(
        self,
        job: JobHandle,
        state: Mapping[str, Any],
        meta: Callable[[], dict[str, Any]],
        *,
        every_steps: int | None,
        every_s: float | None,
    ):
        self.checkpointer = job.phases.checkpointer(state)
        self.every_steps = every_steps
        self.every_s = every_s
        self._at_rest: Moment | None = None  # whose state is in a checkpoint
        self._taken: Moment | None = None  # whose state is being written
        self.first = 0  # steps of the run before this loop's
        self._job, self._meta = job, meta
        self._tolerant = Tolerance(job, "a checkpoint")
        self._next = time.monotonic() + (every_s or 0.0)
        if self.checkpointer is not None:
            job.flags.progress = self.checkpointer.progress

    def note_restored(self, run_step: int, step: int) -> None:
        self.first = run_step - step
        self._at_rest = self._moment(step)

    def _moment(self, step: int) -> Moment:
        return step, self._meta()["epoch"]

    def look_at_the_clock(self) -> None:
        """Rank 0's decides; the others hear of it by the word."""
        if self.every_s and self._job.rank == 0 and time.monotonic() >= self._next:
            self._job.flags.set("save")
            self._next = math.inf  # until it has been done

    def advance_to(self, agreed: Agreed) -> None:
        """What all ranks know of the save that is on its way."""
        if self.checkpointer is not None:
            with self._tolerant(math.inf):
                self._note(self.checkpointer.advance_to(agreed.progress))

    @property
    def _is_overdue(self) -> bool:
        """On all ranks alike: they fail together."""
        return self._tolerant.failures > self._job.saving.max_failures

    def is_due(self, step: int, agreed: Agreed | None, window: int = 1) -> bool:
        """By what all ranks know, and by what all can count; never by what this rank alone sees.

        step: just done. window: steps since it could be done last; 0 if none.
        """
        by_count = bool(self.every_steps and step % self.every_steps < window)
        return by_count or self._is_overdue or (agreed is not None and agreed["save"])

    def beside(self, step: int) -> None:
        """A periodic save: the training waits for the copy, and not for the disk."""
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        moment = self._moment(step)
        if self.checkpointer is None or self._at_rest == moment:
            return
        if self._is_overdue:
            self.now(step)
            return
        began = time.monotonic()
        if self._job.saving.async_save:
            if self.checkpointer.async_save(self.first + step, self._meta()):
                self._taken = moment
        else:
            with self._tolerant(math.inf):
                self._save(step)
        self._job.flags.discount(time.monotonic() - began)

    def now(self, step: int) -> None:
        """Until it is durable. CheckpointError if it cannot be saved for LAST_CHANCE_S."""
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        if self.checkpointer is None:
            return
        began = time.monotonic()
        with self._tolerant(math.inf):  # if the one on its way fails, this one is tried all the same
            self._note(self.checkpointer.wait())
        if self._at_rest != self._moment(step):
            self._insist(step)
        self._job.flags.discount(time.monotonic() - began)

    def _insist(self, step: int) -> None:
        """Again and again. The ranks fail together, and agree on whether there is time for another try."""
        deadline, pause_s = time.monotonic() + LAST_CHANCE_S, FIRST_PAUSE_S
        with self._tolerant(math.inf):
            self._save(step, compare_all=True)
            return
        if self._job.rank == 0:
            say(f"clusterdp: the training waits for this save, for up to {LAST_CHANCE_S:.0f} s.", error=True)
        while True:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            last = bool(self._job.group.agree(int(time.monotonic() + pause_s > deadline))[0])
            try:
                self._save(step, compare_all=True)
                return
            except (ClaimLost, LostContact, StateError):
                raise
            except CheckpointError:
                if last:
                    raise

    def upload(self) -> None:
        """At the end of the run: what keep_local has kept nearby reaches the store, if the store is there."""
        if self.checkpointer is not None and not self.checkpointer.upload(LAST_UPLOAD_S):
            say(
                f"clusterdp: the store was away for {LAST_UPLOAD_S:.0f} s; the last checkpoint is in "
                f"{self.checkpointer.storage.url} alone.",
                error=True,
            )

    def _save(self, step: int, compare_all: bool = False) -> None:
        assert self.checkpointer is not None
        self._taken = self._moment(step)
        self._note(self.checkpointer.save(self.first + step, self._meta(), compare_all=compare_all))

    def _note(self, commit: Commit | None) -> None:
        if commit is not None:
            self._at_rest = self._taken
            self._tolerant.failures = 0
            self._job.flags.save_s = commit.seconds


class Tolerance:
    """A save that fails is told, and the training goes on: what was saved before is as it was."""

    def __init__(self, job: JobHandle, what: str):
        self._job, self._what = job, what
        self.failures = 0  # in a row

    @contextmanager
    def __call__(self, at_most: float) -> Iterator[None]:
        try:
            yield
        except (ClaimLost, LostContact, StateError):
            raise  # a state that cannot be saved, or that is no longer the same on all ranks, gets no better
        except CheckpointError as error:
            self.failures += 1
            self._job.event("save-failed", step=self._job.step, error=str(error), failures=self.failures)
            if self.failures > at_most:
                raise
            if self._job.rank == 0:
                say(f"clusterdp: {self._what} was not saved ({self.failures} in a row): {error}", error=True)
