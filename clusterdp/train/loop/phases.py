"""Phases: the loops of one job, which run one after the other. Each loop has its own position and state.

    warm = job.loop(loader, {"g": g, "g_opt": g_opt}, epochs=2, name="warm-up")
    for batch in warm: ...
    loop = job.loop(loader, {"g": g, "d": d, ...}, epochs=20)       # one of the phases may have no name

Each attempt runs the program from the top. The loop of a completed phase restores the state at the end of the phase,
including the random streams, and yields no batch. The program's code between two loops runs again, with the same
result. The steps of checkpoints, metrics and `job.step` continue through all phases. `loop.step` counts the phase's own
steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from clusterdp.checkpoint.format.layout import is_phase
from clusterdp.checkpoint.state import stateful
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError, EntryError
from clusterdp.train.hang import page
from clusterdp.train.loop.forgotten import Forgotten
from clusterdp.train.loop.place import FINISH
from clusterdp.train.optim.lr_schedule import Schedules
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.train.profile.stopwatch import Stopwatch, report_times
from clusterdp.train.ranks.rank import Rank
from clusterdp.train.ranks.shared_flags import agree_on_stop
from clusterdp.train.ranks.stop import Stopped
from clusterdp.wording import counted, some_of

if TYPE_CHECKING:
    from clusterdp.checkpoint import Checkpointer, Restored
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.loop.position import Epoch
    from clusterdp.train.profile.profiling import Profile

Batch = TypeVar("Batch")
Item = TypeVar("Item")


class Phases:
    """The loops of a job, and the objects that each loop gets.

    loop: the running loop, or the last one; None before the first loop has begun.
    resume_step: the step of the run to go back to; None once a phase has gone back.
    max_steps: the run's number of steps. The loop that reaches max_steps ends, and later loops end at once.
    profile: the measurement of each loop's first steps; None: there is none.
    """

    def __init__(
        self,
        rank: Rank,
        record: AttemptRecord,
        stopwatch: Stopwatch,
        saving: CheckpointConfig,
        make_checkpointer: Callable[[Mapping[str, Any]], Checkpointer | None],
        *,
        resume_step: int | None,
        max_steps: int | None = None,
        profile: Profile | None = None,
    ):
        self.rank, self.record, self.stopwatch, self.saving = rank, record, stopwatch, saving
        self.profile = profile
        self.resume_step, self.max_steps = resume_step, max_steps
        self.loop: Loop[Any] | None = None
        self.epoch: Epoch[Any] | None = None  # the newest of the loop's
        self.begun = 0  # number of loops that have begun
        self._make_checkpointer = make_checkpointer
        self._names: set[str] = set()
        self._checkpointer: Checkpointer | None = None

    def checkpointer(self, state: Mapping[str, Any]) -> Checkpointer | None:
        """Returns the one Checkpointer of all phases, which has buffers and a thread that writes to the store."""
        if self._checkpointer is None:
            self._checkpointer = self._make_checkpointer(state)
        return self._checkpointer

    def name(self, name: str, continues: Loop[Any] | None) -> None:
        """Registers a new loop. Raises EntryError, which ends the run, if two loops would use the same checkpoints."""
        if name and not is_phase(name):
            raise ConfigError(f"name: {name!r} cannot name a phase. Use at most 64 letters, digits, and any of - _ .")
        if continues is None and name in self._names and (name or self.saving.url is not None):
            raise EntryError(_twice(name))
        self._names.add(name)

    def begin(self, loop: Loop[Any]) -> None:
        """Begins a loop: restores it, and finds how many steps it has. Collective. Stops the job if a stop was
        requested since the last loop."""
        batches, position, rank, profile = loop.batches, loop.position, self.rank, self.profile
        batches.measure()
        if loop.position.accumulate > 1 and batches.per_epoch is None:
            raise ConfigError(
                "accumulate: the loader has no length, so it is not known which batch ends an epoch's last window. "
                "Give its data set a __len__."
            )
        with page.during(page.RESTORE):
            self._begin(loop)
            loop.models.settle()
            schedules = Schedules(loop.state)
            loop.restored = self._restore(loop)
        loop.models.begin(rank.world_size)
        if loop.announces and loop.continues is None and not position.finished:
            batches.say_share(str(loop) if loop.name else "", loop.position.accumulate)
        most = sys.maxsize if self.max_steps is None else self.max_steps - loop.first
        loop.limit = min(loop.max_steps or sys.maxsize, most)
        loop.total_steps = batches.steps_in_all(loop.limit, None if profile is None else profile.steps)
        schedules.say(loop.restored if rank.is_first else None, loop.total_steps, loop.position.accumulate)
        if position.micro_batch and rank.is_first:
            schedules.say_made(loop.total_epochs * len(batches.loader), loop.total_steps)  # type: ignore[arg-type]
        self.stopwatch.page[page.FIRST] = loop.first + loop.step
        if profile is not None:
            profile.begin(loop.state)
        position.end_at_limit(loop.step >= loop.limit)
        if position.finished:
            if loop.restored is not None:
                batches.pass_all()
            if rank.is_first:
                done = f"{counted(loop.epoch, 'epoch')}, step {loop.step}"
                say(f"clusterdp: {loop} is complete ({done}): nothing left to do.")

    def _begin(self, loop: Loop[Any]) -> None:
        last, is_read = self.loop, self.epoch is not None and self.epoch.is_open
        if loop.over or (last is loop and is_read):
            raise ConfigError(
                f"loop: {loop} {'is under way' if is_read else 'has ended'}, and a pass over a loop is all its epochs "
                f"(epochs={loop.total_epochs}). Write `for epoch in loop.epochs():`, in it `for batch in epoch:`."
            )
        if last is not None and self.saving.url is not None:
            _check_order(last, loop)
        if last is not None and (reason := agree_on_stop(self.rank.group, self.rank.stop)):
            self.stop(reason)
        loop.saves.first = last.first if last is not None and last is loop.continues else self.record.step
        self.loop = loop
        self.record.phase = loop.name
        self.begun += 1
        self.rank.flags.set("enough", False)
        self.record.time.turn("restore")
        if loop.saves.checkpointer is None:
            stateful.check(loop.state)  # as on the cluster
            return
        loop.saves.checkpointer.begin(loop.name, loop.state, loop.first)
        if loop.position.micro_batch:
            loop.saves.checkpointer.on_other_ranks = _on_other_ranks(loop)
        if self.rank.is_first:
            state = {name: part for name, part in loop.state.items() if name not in loop.batches.state}
            loop.saves.forgotten = Forgotten(state, loop.batches.loader, loop.variables.older, loop.forget)

    def _restore(self, loop: Loop[Any]) -> Restored | None:
        """Restores a loop from its newest checkpoint. Returns None if there is none."""
        saves, batches, record = loop.saves, loop.batches, self.record
        restored = None
        if saves.checkpointer is not None:
            restored = saves.checkpointer.restore(self.resume_step, retire_later=True)
        if restored is None:
            if loop.continues is not None:  # without checkpoints, or interrupted before its first save
                batches.go_on_from(loop.continues.position)
            elif self.begun == 1:
                saves.start_from([name for name in loop.state if name not in batches.state])
            return None
        if restored.from_memory or restored.step == self.resume_step:
            self.resume_step = None
        record.step = restored.step
        saves.note_restored(restored, loop.step)
        why = [*batches.resumed(restored.world_size), *loop.models.why_not_exact()]
        restored = replace(restored, exact=restored.exact and not why, differences=(*restored.differences, *why))
        told: dict[str, Any] = {} if restored.exact else {"inexact": "; ".join(restored.differences)}
        if restored.world_size != self.rank.world_size:
            place, ranks = loop.position, self.rank.world_size
            told |= {"ranks": ranks, "saved_by": restored.world_size}
            told |= {"samples": place.global_batch * place.accumulate, "saved_samples": place.saved_global_batch}
        told |= {**({"memory": True} if restored.from_memory else {}), **record.phase_field}
        record.event("restored", step=restored.step, checkpoint=restored.token, **told)
        return restored

    def _restore_rng(self, loop: Loop[Any]) -> None:
        if loop.saves.restore_rng() and loop.restored is not None:
            loop.windows.resumed(loop.restored.world_size)

    def begin_epoch(self, loop: Loop[Batch]) -> Iterator[Batch]:
        """Returns an iterator over the rest of the loop's epoch."""
        if loop.position.batch == 0:
            self._restore_rng(loop)  # no iterator of this epoch has drawn random numbers yet
        self.record.time.turn("steps")
        self.stopwatch.begin(loop.first + loop.step)
        batches = loop.batches.open()
        self._restore_rng(loop)
        if loop.restored is not None and loop.batches.differs is not None:
            differences = (*loop.restored.differences, f"loader: {loop.batches.differs}")
            loop.restored, loop.batches.differs = replace(loop.restored, exact=False, differences=differences), None
        self.stopwatch.skip()
        return batches

    def end_profile(self, loop: Loop[Any]) -> None:
        """Ends the job after the steps that are measured, if it measures any. Collective."""
        if self.profile is not None and self.stopwatch.steps >= self.profile.steps:
            self.rank.flags.drain()
            loop.batches.close()
            self.profile.end(loop.batches.loader, loop.batches.mean_size)

    def stop(self, reason: str, loop: Loop[Any] | None = None) -> NoReturn:
        """Saves the loop that is at work, if there is one, and stops the job. Collective."""
        self.record.event("signal", name=self.rank.why_stopped(reason), step=self.record.step)
        if loop is not None:
            loop.windows.write()
            loop.save()
            rest = None if loop.position.ended else loop.batches.opened
            loop.saves.witness.stop(rest, self.stopwatch.data_s, loop.windows.next_number())
            self._close(loop)
        self.record.stopped(reason)
        raise Stopped(reason, self.record.step)

    def finish(self, loop: Loop[Any]) -> None:
        """Saves the end of a loop. Collective."""
        self._restore_rng(loop)
        loop.windows.write()
        loop.models.check_exchanged(self.rank.group)
        self.rank.flags.drain()
        self.rank.flags.set("enough", False)
        self.record.time.turn("evaluation")
        loop.saves.now(loop.step)
        loop.variables.end()
        loop.saves.witness.end()
        loop.place.move(FINISH)
        loop.saves.upload()
        self._close(loop)
        self.record.metrics.flush()

    def _close(self, loop: Loop[Any]) -> None:
        loop.batches.close()
        report_times(self.stopwatch, self.rank, self.record, loop.batches.loader)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items. After each item, the running loop reads the shared flags, and saves or stops if needed."""
        with page.during(page.EVALUATION):
            items = page.with_signs(items)
            if self.loop is not None:
                with self.record.time.during("evaluation"):
                    yield from self.loop.watched(items)
                return
            for item, agreed in self.rank.flags.iterate(items):
                if agreed is None:
                    yield item  # type: ignore[misc]
                elif agreed.stop:
                    raise Stopped(agreed.stop, self.record.step)


def _on_other_ranks(loop: Loop[Any]) -> str:
    """Returns what is not the same in a loop with a global batch that goes on on another number of ranks."""
    if not loop.models.by_tree:
        same = "the samples and the random numbers of each step are the same"
        return f"{stateful.NOT_RESTORED}, buffers that differed are rank 0's, {same}, and sums are rounded otherwise"
    own = [name for name, part in loop.state.items() if stateful.is_per_rank(part) and name not in loop.batches.state]
    return f"{stateful.NOT_RESTORED}: {some_of(own)}" if own else ""


def _twice(name: str) -> str:
    if name:
        return f"phase {name!r}: a loop or Trainer has this name already. Give each its own, such as fold0, fold1."
    return (
        "loop: it is the second loop or Trainer of this run that has no name, and would go on from the checkpoints of "
        'the first. Give it one: job.loop(..., name="finetune"), Trainer(..., name="finetune").'
    )


def _check_order(last: Loop[Any], loop: Loop[Any]) -> None:
    if loop.continues not in (None, last):
        raise EntryError(
            f"{loop}: it is over, for {last} has begun since. To train on, make another with its own name."
        )
    if not last.over and loop.continues is None:
        raise EntryError(
            f"{last}: it was left at step {last.step}, before its end, and an attempt that resumes would not know. "
            "Give it fewer epochs, or call loop.end() and go on until it ends."
        )
