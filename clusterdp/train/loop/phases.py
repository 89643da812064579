"""Phases: the loops of one job, one after the other, each with a position and a state of its own.

    warm = job.loop(loader, {"g": g, "g_opt": g_opt}, epochs=2, name="warm-up")
    for batch in warm: ...
    loop = job.loop(loader, {"g": g, "d": d, ...}, epochs=20)       # of all phases, one may do without a name

An attempt runs the program from its top. The loop of a phase that is complete restores the end of that phase, random
numbers included, and yields nothing; what the program does between two loops it does again, and it comes to the same.
The steps of checkpoints, metrics and `job.step` count on through all phases; `loop.step` is the phase's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from clusterdp.checkpoint.format.layout import is_phase
from clusterdp.errors import ConfigError, EntryError
from clusterdp.train.dist.stop import Stopped

if TYPE_CHECKING:
    from clusterdp.checkpoint import Checkpointer
    from clusterdp.train.job import JobHandle
    from clusterdp.train.loop.loop import Loop

Item = TypeVar("Item")


class Phases:
    """`loop`: the one at work, or the last that was; None before the first has begun. `resume_step`: the step that
    somebody wants to go back to, until a phase has."""

    def __init__(self, job: JobHandle, resume_step: int | None):
        self.loop: Loop[Any] | None = None
        self.resume_step = resume_step
        self.begun = 0  # loops
        self._job = job
        self._names: set[str] = set()
        self._checkpointer: Checkpointer | None = None

    @property
    def named(self) -> dict[str, str]:
        """The name of the one at work as a field of records; none if it has none."""
        return {"phase": self.loop.name} if self.loop is not None and self.loop.name else {}

    def checkpointer(self, state: Mapping[str, Any]) -> Checkpointer | None:
        """One for all phases, which begin() hands on: it has memory of its own, and a thread that feeds the store."""
        if self._checkpointer is None:
            self._checkpointer = self._job.checkpointer(state)
        return self._checkpointer

    def name(self, name: str, continues: Loop[Any] | None) -> None:
        """For a new loop. EntryError, which no other attempt mends, where its checkpoints would be another one's."""
        if name and not is_phase(name):
            raise ConfigError(f"name: {name!r} is no name of a phase. Use at most 64 letters, digits, and any of - _ .")
        if continues is None and name in self._names and (name or self._job.is_kept):
            raise EntryError(_twice(name))
        self._names.add(name)

    def begin(self, loop: Loop[Any]) -> None:
        """Collective, before anything is restored: a stop that was asked for since the last loop is heeded here."""
        last, job = self.loop, self._job
        if last is not None and job.is_kept:
            _check_order(last, loop)
        if last is not None:
            self._heed_stop()
        loop.saves.first = last.first if last is not None and last is loop.continues else job.step
        self.loop = loop
        self.begun += 1
        job.flags.set("enough", False)
        if loop.saves.checkpointer is not None:
            loop.saves.checkpointer.begin(loop.name, loop.state, loop.first)

    def _heed_stop(self) -> None:
        job = self._job
        asked = job.stop.reason()
        term, at_limit = job.group.agree(asked == "term", asked == "time")
        if term or at_limit:
            reason = "term" if term else "time"
            job.event("signal", name=job.stop.name_of(reason), step=job.step)
            job.event("stopped", step=job.step, reason=reason)
            job.metrics.flush()
            raise Stopped(reason, job.step)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, and a look at the control word after each: the loop at work saves and stops."""
        if self.loop is not None:
            yield from self.loop.watched(items)
            return
        for item, agreed in self._job.flags.together(items):
            if agreed is None:
                yield item  # type: ignore[misc]
            elif agreed.stop:
                raise Stopped(agreed.stop, self._job.step)


def _twice(name: str) -> str:
    if name:
        return (
            f"phase {name!r}: there is a loop or Trainer of this name already. Give each its own, such as fold0, fold1."
        )
    return (
        "loop: it is the second loop or Trainer of this run that has no name, and would go on from the checkpoints of "
        'the first. Give it one: job.loop(..., name="finetune"), Trainer(..., name="finetune").'
    )


def _check_order(last: Loop[Any], loop: Loop[Any]) -> None:
    if loop.continues not in (None, last):
        raise EntryError(
            f"{loop}: it is over, for {last} has begun since. To train on, make another with a name of its own."
        )
    if not last.over and loop.continues is None:
        raise EntryError(
            f"{last}: it was left at step {last.step}, before its end, and an attempt that resumes would not know. "
            "Give it fewer epochs, or call loop.end() and go on until it ends."
        )
