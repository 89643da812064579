"""Saves: when a loop saves, whether it waits for the disk, and what a save that fails comes to."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clusterdp.checkpoint import CheckpointError, ClaimLost, Commit, LostContact, StateError
from clusterdp.train.word import Agreed

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle


LAST_UPLOAD_S = 600.0  # nobody waits for a store longer than that


class Saves:
    """Of one loop; a no-op if the run has no place for checkpoints. All methods are collective.

    Every so many steps, or seconds by rank 0's clock, the state is copied and written while the training goes on; the
    control word tells when all ranks have written, and that is when it is committed. What is due while a save is on its
    way is skipped. now() waits for the disk: before a stop, and at the end.
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
        self.checkpointer = job.checkpointer(state)
        self.every_steps = every_steps
        self.every_s = every_s
        self.at_rest = -1  # the step whose state is in a checkpoint
        self._job, self._meta = job, meta
        self._tolerant = Tolerance(job, "a checkpoint")
        self._next = time.monotonic() + (every_s or 0.0)
        if self.checkpointer is not None:
            job.word.progress = self.checkpointer.progress

    def look_at_the_clock(self) -> None:
        """Rank 0's decides; the others hear of it by the word."""
        if self.every_s and self._job.rank == 0 and time.monotonic() >= self._next:
            self._job.word.set("save")
            self._next = math.inf  # until it has been done

    def heed(self, agreed: Agreed) -> None:
        """What all ranks know of the save that is on its way."""
        if self.checkpointer is not None:
            with self._tolerant(self._job.saving.max_failures):
                self._note(self.checkpointer.heed(agreed.progress))

    def is_due(self, step: int, agreed: Agreed | None, window: int = 1) -> bool:
        """By what all ranks know, and by what all can count; never by what this rank alone sees.

        step: just done. window: steps since it could be done last.
        """
        by_count = bool(self.every_steps and step % self.every_steps < window)
        return by_count or (agreed is not None and agreed["save"])

    def beside(self, step: int) -> None:
        """A periodic save: the training waits for the copy, and not for the disk."""
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        if self.checkpointer is None or self.at_rest == step:
            return
        began = time.monotonic()
        if self._job.saving.async_save:
            self.checkpointer.async_save(step, self._meta())
        else:
            with self._tolerant(self._job.saving.max_failures):
                self._note(self.checkpointer.save(step, self._meta()))
        self._job.word.discount(time.monotonic() - began)

    def now(self, step: int) -> None:
        """Until it is durable."""
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        if self.checkpointer is None:
            return
        began = time.monotonic()
        with self._tolerant(math.inf):  # if the one on its way fails, this one is tried all the same
            self._note(self.checkpointer.wait())
        if self.at_rest != step:
            self._note(self.checkpointer.save(step, self._meta()))
        self._job.word.discount(time.monotonic() - began)

    def upload(self) -> None:
        """At the end of the run: what keep_local has kept nearby reaches the store, if the store is there."""
        if self.checkpointer is not None and not self.checkpointer.upload(LAST_UPLOAD_S):
            print(
                f"clusterdp: the store was away for {LAST_UPLOAD_S:.0f} s; the last checkpoint is in "
                f"{self.checkpointer.storage.url} alone.",
                file=sys.stderr,
            )

    def _note(self, commit: Commit | None) -> None:
        if commit is not None:
            self.at_rest = commit.step
            self._tolerant.failures = 0
            self._job.word.save_s = commit.seconds


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
                print(f"clusterdp: {self._what} was not saved ({self.failures} in a row): {error}", file=sys.stderr)
