"""SaveSchedule: decides when a loop saves and whether it waits for the disk, and handles failed saves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterdp.checkpoint import Checkpointer, CheckpointError, ClaimLost, Commit, LostContact, Restored, StateError
from clusterdp.checkpoint.load.foreign_formats import commits_in
from clusterdp.config.load import read_resolved
from clusterdp.config.tree import CheckpointConfig
from clusterdp.rundir import RunDir
from clusterdp.train.hang import page
from clusterdp.train.loop.forgotten import Forgotten
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.train.ranks.shared_flags import Agreed
from clusterdp.train.witness.witness import MEMORY, Witness

CHECKPOINT, COPY = 1, 2  # what is due at the end of a window: a checkpoint, and a copy to the memory of the nodes
LAST_UPLOAD_S = 600.0  # seconds for which the end of a loop waits for the store
LAST_CHANCE_S = 600.0  # seconds for which a save is tried again before the attempt ends without it
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0
Moment = tuple[int, int]  # steps, and finished epochs: code at an epoch's end changes the state, too


def place_to_start_from(path: str, only: Sequence[str]) -> str:
    """Returns the place of the checkpoints, if `path` is a run folder: if only the model is wanted, the place of the
    best model, where one was kept. Any other path is returned unchanged."""
    run = RunDir(Path(path).expanduser())
    if not run.config.is_file():
        return path
    url = str((read_resolved(run.config).get("checkpoint") or {}).get("url") or run.checkpoints)
    url = url if "://" in url else str(run.code / url)  # a relative one is relative to the folder of the ranks
    best = f"{url.rstrip('/')}-best"
    return best if list(only) == ["model"] and commits_in(best) else url


class SaveSchedule:
    """The saves of one loop. If the run has no place for checkpoints, the methods do nothing. All methods are
    collective.

    Every n steps, or every n seconds by rank 0's clock, the state is copied and written while the training continues.
    The save is committed when the shared flags show that all ranks have written. A save that becomes due while another
    is being written is skipped. now() waits for the disk: before a stop, and at the end.

    A periodic save that fails is tried again at the next period. After more failures in a row than
    checkpoint.max_failures, the training waits until a save succeeds, for up to LAST_CHANCE_S. now() also tries for
    LAST_CHANCE_S, because the state is lost if the attempt ends without the save.
    """

    def __init__(
        self,
        rank: Rank,
        record: AttemptRecord,
        saving: CheckpointConfig,
        checkpointer: Checkpointer | None,
        meta: Callable[[], dict[str, Any]],
        every_steps: int | None,
        every_s: float | None,
        state: Mapping[str, Any],
        loader: Any,
    ):
        """state: the user's. loader: the loop's."""
        self.checkpointer = checkpointer
        self.witness = Witness(state, loader, rank, record, saving.witness)
        self.every_steps, self.every_s = every_steps, every_s
        self._saved: Moment | None = None  # the moment whose state is in a checkpoint
        self._taken: Moment | None = None  # the moment whose state is being written
        self.first = 0  # number of steps of the run before this loop
        self._rank, self._record, self._saving, self._meta = rank, record, saving, meta
        self._lead_said = self._checked = self._rng_waits = False
        self.forgotten: Forgotten | None = None
        self._tolerate = Tolerance(rank, record, "a checkpoint")
        self._next = time.monotonic() + (every_s or 0.0)
        self._copied_at = time.monotonic()  # inf from the request for a copy to the copy
        self._copies_now = False  # whether _finish_copy() commits a copy
        if self.checkpointer is not None:
            rank.flags.progress = self.checkpointer.progress

    def start_from(self, names: Sequence[str]) -> None:
        """Restores state that another program has trained, as step 0 of this run, if the config names one. `names`: the
        objects of the program's own state. Those of the loop, such as its step, stay."""
        saving = self._saving
        if self.checkpointer is not None and saving.start_from is not None:
            place = place_to_start_from(saving.start_from, saving.start_only)
            only = saving.start_only or (names if commits_in(place) else None)
            start = self.checkpointer.restore_from(place, only)
            self._record.event("started-from", path=place, step=start.step)

    def note_restored(self, restored: Restored, step: int) -> None:
        self.first, self._rng_waits = restored.step - step, True
        self._saved = None if restored.from_memory else self._moment(step)
        assert self.checkpointer is not None
        self.witness.restored(self.checkpointer.token + (MEMORY if restored.from_memory else ""), restored)

    def restore_rng(self) -> bool:
        """Restores the random state of a restore, once, after iter(loader), which draws from torch's global stream.
        Returns whether it did."""
        waited, self._rng_waits = self._rng_waits and self.checkpointer is not None, False
        if waited and self.checkpointer is not None:
            self.checkpointer.restore_rng()
        return waited

    def _moment(self, step: int) -> Moment:
        return step, self._meta()["epoch"]

    def close_window(self) -> None:
        """Called after each window. Commits a copy that waits for it, and asks for a save if a save is due by rank 0's
        clock: the shared flags carry the request to the other ranks. After the first window, finds state that cannot be
        saved, because the first save may come much later."""
        self._finish_copy()
        if self.checkpointer is not None and not self._checked:
            self._checked, began = True, time.monotonic()
            with page.during(page.SAVE), self._tolerate():
                self.checkpointer.check(self._record.step)
            self._discount(time.monotonic() - began)
        if self.every_s and self._rank.is_first and time.monotonic() >= self._next:
            self._rank.flags.set("save")
            self._next = math.inf  # no other save is requested until this save is done
        if self._rank.is_first and self.checkpointer is not None:
            pause_s = self.checkpointer.copy_pause_s(self._saving.memory_s)
            if pause_s is not None and time.monotonic() >= self._copied_at + pause_s:
                self._rank.flags.set("copy")
                self._copied_at = math.inf

    def note_progress(self, agreed: Agreed) -> None:
        """Commits the save in flight once all ranks have written it."""
        if self.checkpointer is not None:
            with page.during(page.SAVE), self._tolerate():
                self._note(self.checkpointer.advance_to(agreed.progress))
                self._say_lead()

    @property
    def _is_overdue(self) -> bool:
        """Whether too many saves have failed: equal on all ranks, because a save fails on all ranks together."""
        return self._tolerate.failures > self._saving.max_failures

    def due(self, step: int, agreed: Agreed | None, window: int = 1) -> int:
        """Returns the sum of what is due: CHECKPOINT, COPY, both or none. The decision uses only values that are equal
        on all ranks, never this rank's own values.

        step: number of the finished step. window: number of steps since the last chance to save, or 0.
        """
        by_count = bool(self.every_steps and step % self.every_steps < window)
        is_due = by_count or self._is_overdue or (agreed is not None and agreed["save"])
        copies = agreed is not None and agreed["copy"]
        if copies:
            self._copied_at = time.monotonic()
        return (CHECKPOINT if is_due else 0) + (COPY if copies else 0)

    def _copy(self, step: int) -> None:
        """Copies the state to the memory of the nodes, unless it is in a checkpoint already."""
        began = time.monotonic()
        if self.checkpointer is not None and self._saved != self._moment(step):
            before = self.checkpointer.token
            with page.during(page.SAVE), self._tolerate():
                self.checkpointer.copy(self.first + step, self._meta())
                if self.checkpointer.token != before:
                    self.witness.saved(self.checkpointer.token + MEMORY, self.first + step)
            self._discount(time.monotonic() - began)
            self._copies_now = self._rank.flags.every == 1

    def _finish_copy(self) -> None:
        """Commits a copy at the end of the step after it if steps are slow: the progress of all ranks would be known
        some steps later. Equal on all ranks, because their steps have an agreed duration."""
        if self._copies_now and self.checkpointer is not None:
            self._copies_now, began = False, time.monotonic()
            with page.during(page.SAVE), self._tolerate():
                self.checkpointer.finish_copy()
            self._discount(time.monotonic() - began)

    def in_background(self, step: int, due: int = CHECKPOINT) -> None:
        """Makes the saves that are due: the training waits until the state is copied in memory, and not for the
        disk."""
        if due & CHECKPOINT:
            self._save_in_background(step)
        if due & COPY:
            self._copy(step)

    def _save_in_background(self, step: int) -> None:
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        moment = self._moment(step)
        if self.checkpointer is None or self._saved == moment:
            return
        if self._is_overdue:
            self.now(step)
            return
        began = time.monotonic()
        with page.during(page.SAVE), self._tolerate():
            if not self._saving.async_save:
                self._save(step)
            elif self.checkpointer.async_save(self.first + step, self._meta()):
                self._taken = moment
                self.witness.saved(self.checkpointer.token, self.first + step)
        self._discount(time.monotonic() - began)

    def now(self, step: int) -> None:
        """Saves, and waits until the save is durable. Raises CheckpointError if it still fails after LAST_CHANCE_S."""
        if self.every_s:
            self._next = time.monotonic() + self.every_s
        if self.checkpointer is None:
            return
        began = time.monotonic()
        with page.during(page.SAVE):
            with self._tolerate():  # if the save in flight fails, this save is still tried
                self._note(self.checkpointer.wait())
            if self._saved != self._moment(step):
                self._retry(step)
        self._discount(time.monotonic() - began)

    def _discount(self, seconds: float) -> None:
        """Records how long the training has waited for a save."""
        if self.forgotten is not None:
            self.forgotten.look(self._record)
        self._rank.flags.discount(seconds)
        self._record.time.took("saves", seconds)

    def _retry(self, step: int) -> None:
        """Tries to save until a save succeeds. A save fails on all ranks together, and the ranks agree on whether there
        is time for another try."""
        deadline, pause_s = time.monotonic() + LAST_CHANCE_S, FIRST_PAUSE_S
        with self._tolerate():
            self._save(step, compare_all=True)
            return
        if self._rank.is_first:
            say(f"clusterdp: the training waits for this save, for up to {LAST_CHANCE_S:.0f} s.", error=True)
        while True:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            last = bool(self._rank.group.agree(int(time.monotonic() + pause_s > deadline))[0])
            try:
                self._save(step, compare_all=True)
                return
            except (ClaimLost, LostContact, StateError):
                raise
            except CheckpointError:
                if last:
                    raise

    def upload(self) -> None:
        """Copies the checkpoints that keep_local has kept in the run folder to the store, if the store can be reached.
        upload() is called at the end of a loop."""
        if self.checkpointer is None:
            return
        with page.during(page.SAVE):
            uploaded = self.checkpointer.upload(LAST_UPLOAD_S)
        if not uploaded:
            say(
                f"clusterdp: the store could not be reached for {LAST_UPLOAD_S:.0f} s; the last checkpoint is in "
                f"{self.checkpointer.storage.url} alone.",
                error=True,
            )

    def _save(self, step: int, compare_all: bool = False) -> None:
        assert self.checkpointer is not None
        self._taken = self._moment(step)
        self._note(self.checkpointer.save(self.first + step, self._meta(), compare_all=compare_all))
        self.witness.saved(self.checkpointer.token, self.first + step, waits=True)

    def _note(self, commit: Commit | None) -> None:
        if commit is not None:
            self._saved = self._taken
            self._tolerate.failures = 0
            assert self.checkpointer is not None
            # The seconds of a save at a stop.
            self._rank.flags.saves.append(commit.seconds + self.checkpointer.compare_s + self.checkpointer.exchange_s)

    def _say_lead(self) -> None:
        """Prints, once, how long before the end of the job's time the run will stop. Called after the first background
        save, when steps and saves have been measured."""
        stop, flags = self._rank.stop, self._rank.flags
        if self._rank.is_first and stop.end_time is not None and not self._lead_said and flags.saves:
            self._lead_said = True
            save_s, agreement_s = flags.saves[-1], flags.agreement_s
            say(
                f"clusterdp: a save takes {save_s:.1f} s and an agreement to stop {agreement_s:.1f} s: the run stops "
                f"{stop.lead_s:.0f} s before the end of the job's time (launch.grace_s or more)."
            )


class Tolerance:
    """Reports a failed save and lets the training continue: earlier checkpoints are unchanged."""

    def __init__(self, rank: Rank, record: AttemptRecord, what: str):
        self._rank, self._record, self._what = rank, record, what
        self.failures = 0  # number of failed saves in a row

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except (ClaimLost, LostContact):
            raise
        except CheckpointError as error:
            self.failures += 1
            self._record.event("save-failed", step=self._record.step, error=str(error), failures=self.failures)
            if isinstance(error, StateError):  # another try would not help
                raise
            if self._rank.is_first:
                say(f"clusterdp: {self._what} was not saved ({self.failures} in a row): {error}", error=True)
