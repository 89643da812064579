"""Phases: the loops of one job, which run one after the other. Each loop has its own position and state.

    warm = job.loop(loader, {"g": g, "g_opt": g_opt}, epochs=2, name="warm-up")
    for batch in warm: ...
    loop = job.loop(loader, {"g": g, "d": d, ...}, epochs=20)       # one of the phases may have no name

Each attempt runs the program from the top. The loop of a completed phase restores the state at the end of the phase,
including the random streams, and yields no batch. The program's code between two loops runs again, with the same
result. The steps of checkpoints, metrics and `job.step` continue through all phases. `loop.step` counts the phase's own
steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from clusterdp.checkpoint.format.layout import is_phase
from clusterdp.checkpoint.state import stateful
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError, EntryError
from clusterdp.train.hang import page
from clusterdp.train.hang.page import EVALUATION
from clusterdp.train.loop.forgotten import Forgotten
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.ranks.rank import Rank
from clusterdp.train.ranks.shared_flags import agree_on_stop
from clusterdp.train.ranks.stop import Stopped

if TYPE_CHECKING:
    from clusterdp.checkpoint import Checkpointer
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.loop.position import Epoch
    from clusterdp.train.profile.profiling import Profile

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
        """Begins a loop, before anything is restored. Collective. Stops the job if a stop was requested since the last
        loop."""
        last, is_read = self.loop, self.epoch is not None and self.epoch.is_open
        if loop.over or (last is loop and is_read):
            raise ConfigError(
                f"loop: {loop} {'is under way' if is_read else 'has ended'}, and a pass over a loop is all its epochs "
                f"(epochs={loop.total_epochs}). Write `for epoch in loop.epochs():`, in it `for batch in epoch:`."
            )
        if last is not None and self.saving.url is not None:
            _check_order(last, loop)
        if last is not None:
            self._stop_if_asked()
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
        if self.rank.is_first:
            state = {name: part for name, part in loop.state.items() if name not in loop.batches.state}
            loop.saves.forgotten = Forgotten(state, loop.batches.loader, loop.variables.older, loop.forget)

    def _stop_if_asked(self) -> None:
        rank, record = self.rank, self.record
        if reason := agree_on_stop(rank.group, rank.stop):
            record.event("signal", name=rank.why_stopped(reason), step=record.step)
            record.stopped(reason)
            raise Stopped(reason, record.step)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items. After each item, the running loop reads the shared flags, and saves or stops if needed."""
        with page.during(EVALUATION):
            yield from self._watched(page.with_signs(items))

    def _watched(self, items: Iterable[Item]) -> Iterator[Item]:
        if self.loop is not None:
            with self.record.time.during("evaluation"):
                yield from self.loop.watched(items)
            return
        for item, agreed in self.rank.flags.iterate(items):
            if agreed is None:
                yield item  # type: ignore[misc]
            elif agreed.stop:
                raise Stopped(agreed.stop, self.record.step)


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
