"""Loop: the batches of a training run, from the run's position to its end, over any number of attempts.

Before the first batch, Loop restores everything. Between batches, Loop reads the shared flags and saves when a save is
due. At an agreed stop, Loop saves and raises Stopped. The training step itself is the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clusterdp.checkpoint.state.parameter_names import check_held
from clusterdp.errors import StateError
from clusterdp.train.argument_names import check_counts, checked_class
from clusterdp.train.data.even_batches import same_number
from clusterdp.train.data.loader_defaults import check_can_be_read
from clusterdp.train.hang import page
from clusterdp.train.loop.micro_batches import batches_of
from clusterdp.train.loop.place import ENTER, LEAVE, OVER, QUIT, Place
from clusterdp.train.loop.position import Epoch
from clusterdp.train.loop.save_schedule import CHECKPOINT, SaveSchedule
from clusterdp.train.loop.variables import BATCHES, EPOCHS, Variables
from clusterdp.train.loop.window import window_of
from clusterdp.train.optim.open_window import OpenWindow
from clusterdp.train.parallel.ddp import DdpModels, check_never_skips, hook_states
from clusterdp.train.profile.stopwatch import report_times
from clusterdp.train.ranks.shared_flags import Agreed

if TYPE_CHECKING:
    from clusterdp.checkpoint import Restored
    from clusterdp.train.loop.phases import Phases

Batch = TypeVar("Batch")
Item = TypeVar("Item")


@checked_class
class Loop(Generic[Batch]):
    """A Loop yields batches (`for batch in loop`) or epochs:

        for epoch in loop.epochs():
            for batch in epoch:
                ...
            for batch in loop.watch(validation): ...      # evaluates; a stop is possible
            scheduler.step()                              # changes state only after all code that may be stopped

    If an attempt is stopped during an evaluation, the resumed attempt repeats all code after the epoch, with the same
    random numbers. Change state after the evaluation, not before. All ranks make the same calls. `step` counts the
    finished batches. The run's steps continue from `first`, the steps of earlier loops (see Phases).

    With accumulate=k, every k batches are a window; the last window of an epoch may be shorter:

        for x, y in loop:
            with gradient_sync(model, loop.window_ends):
                (loss(model(x), y) / loop.window).backward()
            if loop.window_ends:
                optimizer.step()
                optimizer.zero_grad()

    Checkpoints hold no gradients: the run stops and saves between two windows, also those that the loop detects without
    accumulate= (see OpenWindow). With train.global_batch_size, `step` counts windows.
    """

    def __init__(
        self,
        phases: Phases,
        loader: Iterable[Batch],
        state: Mapping[str, Any],
        *,
        epochs: int,
        accumulate: int = 1,
        every_steps: int | None = None,
        every_s: float | None = None,
        move: bool | Callable[[Any], Any] = False,
        max_steps: int | None = None,
        limit_batches: int | None = None,
        forget: Collection[str] = (),
        name: str = "",
        continues: Loop[Any] | None = None,
        global_batch_size: int | None = None,
        by_tree: bool = False,
    ):
        self._phases, self._rank, self._record = phases, phases.rank, phases.record
        self.name, self.continues, self.forget = name, continues, forget
        self.announces = True  # whether each rank prints its share of the samples
        lap, limit = phases.stopwatch.lap, limit_batches
        self.batches = batches_of(global_batch_size, by_tree=by_tree)(phases.rank, loader, move, lap, limit=limit)
        self.position = self.batches.position
        self.position.epochs, self.position.limit, self.position.accumulate = epochs, max_steps or 0, accumulate
        self.total_epochs, self.max_steps, self.limit = epochs, max_steps, sys.maxsize  # limit: of the steps
        check_counts(accumulate=accumulate, max_steps=max_steps, limit_batches=limit_batches)
        check_never_skips(state)
        check_held(state)
        self.place = Place(self.position, can_be_left=self.batches.can_be_left)
        self.models = DdpModels(state)
        self.windows = window_of(self.batches, accumulate, state, self.models, phases.record)
        kept = {**state, **hook_states(state)}
        self.variables = Variables(state, loader, self.position, phases.rank, forget)
        self.batches.state["loop_variables"] = self.variables
        self.state = self.batches.with_state(kept)
        saves = partial(SaveSchedule, phases.rank, phases.record, phases.saving, phases.checkpointer(self.state))
        self.saves = saves(lambda: {"epoch": self.epoch, "total": self.total_steps}, every_steps, every_s, kept, loader)
        self.saves.witness.by_tree = self.models.by_tree
        self._enough = False  # whether this rank has called end()
        self.between: Callable[[], bool] | None = None  # called between two steps; returns whether time passed
        self._open_window = OpenWindow(state if accumulate == 1 and global_batch_size is None else {})
        self._stopping: str | None = None  # the reason to stop at the end of the window
        self._due = 0  # what is saved at the end of the window
        self.total_steps: int | None = None  # number of steps of the whole loop; None before the loop has begun
        self.restored: Restored | None = None  # the restored checkpoint, and whether the resume is exact (loader, too)
        phases.name(name, continues)  # comes last, so that a loop that is refused before does not take the name

    def __str__(self) -> str:
        return f"phase {self.name!r}" if self.name else "the training"

    @property
    def step(self) -> int:
        return self.position.step

    @property
    def first(self) -> int:
        """The number of steps of the run before this loop."""
        return self.saves.first

    @property
    def epoch(self) -> int:
        return self.position.epoch

    @property
    def window(self) -> float:
        """The divisor for the loss of the current batch, a mean: see Window.divisor()."""
        return self.windows.divisor()

    @property
    def window_ends(self) -> bool:
        """Whether the current batch is the last of its window, after which the optimizer steps."""
        return self.windows.ends(self.place.in_window)

    @property
    def over(self) -> bool:
        return self.place.where is OVER

    @property
    def samples(self) -> Callable[[], list[int]] | None:
        """A function that returns the indices of the current batch; None if they are unknown. Pass this function to
        NanGuard.watch(loss, loop.samples). A call takes as long as the start of an epoch."""
        return self.windows.samples(self.place.in_window)

    def __iter__(self) -> Iterator[Batch]:
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Epoch[Batch]]:
        self._phases.begin(self)
        self.variables.enter(EPOCHS, sys._getframe())
        while not self.position.finished:
            self.batches.tell_epoch()
            done, over = self.batches.done(), self.position.ended
            try:
                with Epoch(self.position.epoch, self._epoch_batches, done) as self._phases.epoch:
                    yield self._phases.epoch
            except GeneratorExit:
                self.place.move(QUIT)
                raise
            window_ended = self._count_step()
            page.enter(page.PROGRAM)
            if not over:
                self.batches.note_where_left(done, self.place.is_left)
            self.place.next_epoch()
            if window_ended:  # after a break: a save has the code after the epoch in it, which must not be repeated
                self._end_window(self.epoch)
            if self._rank.group.agree(self._enough)[0]:
                self.position.last = self.epoch
        self._phases.finish(self)

    def log(self, **values: Any) -> None:
        """Logs rank 0's numbers of this step; with a global batch, the means over all its samples, on all ranks."""
        self.windows.log(values)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields items that are not training batches, on all ranks, and reads the shared flags between them. Ranks may
        have different numbers of items, unless the model is sharded: see even_batches(). A call in the middle of an
        epoch counts the current step as done."""
        check_can_be_read("loop.watch", items)
        if self.place.is_left and self.batches.can_be_left:
            self._between_windows("watch")
        with self._rank.stop.shielded():
            iterator = iter(items)
        yield from self._phases.watch(same_number(iterator, self._rank.group, self.state))

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """Does the work of watch(), for every evaluation while this loop is running."""
        self._between_windows("watch")
        for item, agreed in self._rank.flags.iterate(items):
            if agreed is None:
                yield item  # type: ignore[misc]
            else:
                self._apply(agreed, self.epoch + 1)
                if self._stopping:
                    self._phases.stop(self._stopping, self)
                if self.saves.due(self.step, agreed, window=0) & CHECKPOINT:
                    with self.place.as_repeated():
                        self.saves.in_background(self.step)

    def save(self) -> None:
        """Saves now, and waits until the checkpoint is durable. The current step counts as done. The loop makes the
        periodic saves and the save at a stop without this call. Raises StateError before the first batch, when nothing
        has been restored yet, and after another loop has begun."""
        if self._phases.loop is not self:
            raise StateError(f"loop.save(): {self} is not at work. Save between its first batch and the next loop.")
        self._between_windows("save")
        self.models.check_exchanged(self._rank.group)
        self._open_window.warn_of_save(self._rank, self.step)
        with self.place.as_repeated():
            self.saves.now(self.step)

    def end(self) -> None:
        """Ends the training early. One rank or several ranks may call end() at any time. A job of one rank stops after
        the current step. The ranks of a larger job stop at the same step, within two exchanges of flags, or at the end
        of the epoch. Code after the epoch still runs. For a fixed number of steps, use max_steps."""
        self._enough = True
        self._rank.flags.set("enough")

    def _epoch_batches(self) -> Iterator[Batch]:
        place, position = self.place, self.position
        batches, lap = self._phases.begin_epoch(self), self._phases.stopwatch.lap
        self.variables.enter(BATCHES, sys._getframe())
        if position.batch and not position.ended:
            self._do_between()
        try:
            for batch in batches:
                lap("data")
                self.saves.witness.batch(batch, *self.windows.enter(place.in_window))
                place.move(ENTER)
                yield batch
                self._close_step()
                self._do_between()
                if position.is_cut:
                    position.ended = True
                    break
        except GeneratorExit:
            if self.batches.opened is batches and not sys.is_finalizing() and place.move(LEAVE):  # else an older one
                self.batches.opened, place.before = None, self.batches.note_end()
            raise
        finally:
            self.variables.leave()
            self._record.time.turn("evaluation")  # the work between two epochs may also be other than an evaluation
            page.enter(page.PROGRAM)
        place.end_epoch(self.batches.note_end(), self.batches.left)

    def _close_step(self) -> None:
        if self._count_step():
            self._end_window(self.epoch + 1)

    def _count_step(self) -> bool:
        """Counts the batch, if one is to be counted. Returns whether its window has ended."""
        if not self.place.count(self.windows.size):
            return False
        position, watch = self.position, self._phases.stopwatch
        watch.lap("step")  # the rest of the step, which has no lap of its own
        if not self.windows.closes_step(self.place.in_window):
            return False
        self.batches.advance()
        self._open_window.close_step()
        watch.page[page.STEP] = step = self.first + position.step
        total = self.total_steps + self.first if self.total_steps is not None else None
        values = self.windows.values(watched=self.saves.witness.is_watching)
        self._record.step_done(step, total, position.epoch, values)
        self.saves.witness.step(values or {})
        watch.step()
        return not self.place.in_window

    def _end_window(self, last: int) -> None:
        """Obeys the shared flags. last: number of epochs after which the loop ends if the program has asked for it."""
        position, watch = self.position, self._phases.stopwatch
        self.models.check_window(self._rank.group)
        self.saves.close_window()
        self._phases.end_profile(self)
        agreed = self._rank.flags.tick() if self._stopping is None else None
        if agreed is not None:
            watch.lap("agreement")
            self._apply(agreed, last)
        if position.step >= self.limit:
            position.at_limit, self.total_steps = True, self.step
        elif self._enough and self._rank.world_size == 1:
            position.last, self.total_steps = last, self.step  # ends the loop, on all ranks
        self._due |= self.saves.due(position.step, agreed, self.windows.steps)
        if (self._stopping or self._due) and not self._open_window.put_off(self._rank.group):
            if self._stopping:
                self._phases.stop(self._stopping, self)
            self.models.check_exchanged(self._rank.group)
            self._open_window.warn_of_save(self._rank, self.step)
            with self.place.as_repeated():
                self.saves.in_background(position.step, self._due)
            self._due = 0
            if agreed is not None and agreed["save"]:  # saves by the clock are rare; `status` shows the slow ranks
                report_times(watch, self._rank, self._record, self.batches.loader, aloud=False)
        watch.lap("checkpoint")

    def _apply(self, agreed: Agreed, last: int) -> None:
        self.saves.note_progress(agreed)
        self.windows.ask_for_values(agreed["metrics"])
        self._stopping = self._stopping or agreed.stop
        if agreed["enough"]:
            self.position.last, self.total_steps = last, self.step

    def _do_between(self) -> None:
        if self.between is None or self.place.in_window or self.position.is_cut or self._phases.profile is not None:
            return
        if self.between():
            self._phases.stopwatch.skip()

    def waits_for_window(self) -> bool:
        """Returns whether a window is open that the loop has detected. Collective."""
        return self._open_window.put_off(self._rank.group)

    def _between_windows(self, call: str) -> None:
        with page.as_before():  # the step may have ended long ago: closing it must not change the phase
            self._close_step()
        self.place.check_window_ended(call, self.windows.size)
