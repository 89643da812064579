"""Loop: the batches of a training run, from wherever the run stands to its end, over any number of attempts.

    loop = job.loop(loader, {"model": model, "optimizer": optimizer, "scaler": scaler}, epochs=10)
    for batch in loop:
        ...                       # forward, backward, step
        loop.log(loss=loss)

Before the first batch everything is restored; between batches it looks at the control word and saves when due; at an
agreed stop it saves and raises Stopped. It owns no step of the training itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from clusterdp.errors import StateError
from clusterdp.train.buckets import settle
from clusterdp.train.sampler import ResumableSampler
from clusterdp.train.stop import Stopped
from clusterdp.train.word import Agreed

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle

Batch = TypeVar("Batch")
Item = TypeVar("Item")


class Position:
    """Where training stands: `step` in all, `batch` of `epoch`. Part of the state; the sampler has the samples."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.batch = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.step, self.epoch, self.batch = state["step"], state["epoch"], state["batch"]


class Epoch(Generic[Batch]):
    """One pass over the data, or what is left of it. Iterate it once."""

    def __init__(self, loop: Loop[Batch], index: int):
        self.loop = loop
        self.index = index

    def __iter__(self) -> Iterator[Batch]:
        return self.loop._batches()


class Loop(Generic[Batch]):
    """Flat (`for batch in loop`) or by epochs:

        for epoch in loop.epochs():
            for batch in epoch:
                ...
            for batch in loop.watch(validation): ...      # evaluate, stoppable
            scheduler.step()                              # state changes after what may be stopped

    An attempt that is stopped while it evaluates does that evaluation again; so change state after it, not before.
    All ranks do the same. `step` counts the batches that are done with.
    """

    def __init__(
        self,
        job: JobHandle,
        loader: Iterable[Batch],
        state: Mapping[str, Any],
        *,
        epochs: int,
        every_steps: int | None = None,
        every_s: float | None = None,
    ):
        self.job = job
        self.loader = loader
        self.total_epochs = epochs
        self.every_steps = every_steps
        self.every_s = every_s
        self.position = Position()
        sampler = getattr(loader, "sampler", None)
        self.sampler = sampler if isinstance(sampler, ResumableSampler) else None
        self.state = self._whole_state(state)
        self.checkpointer = job.checkpointer(self.state)
        self._open = False  # the user's body is at work on a batch
        self._rng_pending = False
        self._at_rest = -1  # the step whose state is in a checkpoint
        self._next_save = time.monotonic() + (every_s or 0.0)
        self._logged: dict[str, Any] = {}
        self._per_epoch: int | None = None  # batches; None if the loader has no length
        self.total_steps: int | None = None  # of the whole run; known once it has begun

    @property
    def step(self) -> int:
        return self.position.step

    @property
    def epoch(self) -> int:
        return self.position.epoch

    def __iter__(self) -> Iterator[Batch]:
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Epoch[Batch]]:
        self._per_epoch = self._count_batches()
        self._restore()
        self._count_steps()
        while self.position.epoch < self.total_epochs:
            yield Epoch(self, self.position.epoch)
            self._close_step()
            self.position.epoch += 1
            self.position.batch = 0
        self._finish()

    def log(self, **values: Any) -> None:
        """Numbers of this step (tensors stay on their device; nothing waits for them). Rank 0's are kept."""
        if self.job.rank == 0:
            self._logged.update(values)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Iterates over anything else than training batches, on all ranks, and looks at the control word meanwhile.

        Ranks may have uneven numbers of items. In the middle of an epoch, the step at hand counts as done from here on.
        """
        self._close_step()
        with self.job.stop.shielded():
            iterator = iter(items)
        for item, agreed in self.job.word.together(iterator):
            if agreed is None:
                yield item  # type: ignore[misc]
            elif agreed.stop:
                self._stop(agreed.stop)
            elif agreed["save"]:
                self.save()

    def save(self) -> None:
        """Now, on all ranks. Periodic saves and the one before a stop come by themselves."""
        if self.every_s:
            self._next_save = time.monotonic() + self.every_s
        if self.checkpointer is None or self._at_rest == self.step:
            return
        began = time.monotonic()
        self.checkpointer.save(self.step, {"epoch": self.epoch, "total": self.total_steps})
        self._at_rest = self.step
        took = time.monotonic() - began
        self.job.word.save_s = took
        self.job.word.durable += 1
        self.job.word.discount(took)

    def _whole_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        ours: dict[str, Any] = {"loop": self.position}
        if self.sampler is not None:
            ours["sampler"] = self.sampler
        taken = [name for name in ours if name in state and state[name] is not ours[name]]
        if taken:
            raise StateError(f"state.{taken[0]}: the loop keeps its own state under this name. Give yours another.")
        return {**state, **ours}

    def _count_batches(self) -> int | None:
        """From here to the end of the epoch: the least of all ranks, for who had more would wait for the others."""
        own = len(self.loader) if isinstance(self.loader, Sized) else -1
        least = self.job.group.agree(own, least=True)[0]
        if least < own:
            print(
                f"clusterdp: rank {self.job.rank} has {own} batches, another rank only {least}; {own - least} dropped."
            )
        return least if least >= 0 else None

    def _restore(self) -> None:
        for part in self.state.values():
            if isinstance(part, torch.nn.Module):
                settle(part)
        if self.checkpointer is None:
            return
        restored = self.checkpointer.restore(self.job.resume_step, retire_later=True)
        if restored is None:
            return
        self.job.step = self._at_rest = self.step
        self._rng_pending = True
        self.job.event("restored", step=restored.step, checkpoint=restored.token)

    def _count_steps(self) -> None:
        if self._per_epoch is None:
            return
        if self.epoch >= self.total_epochs:
            self.total_steps = self.step
            return
        # From the sampler: a run that resumes with another number of ranks has been counting other batches.
        left = len(self.loader) if self.sampler else self._per_epoch - self.position.batch  # type: ignore[arg-type]
        self.total_steps = self.step + left + self._per_epoch * (self.total_epochs - self.epoch - 1)

    def _batches(self) -> Iterator[Batch]:
        skip = 0  # our sampler starts at its position; of another's batches, skip those that have been trained on
        if callable(set_epoch := getattr(getattr(self.loader, "sampler", None), "set_epoch", None)):
            set_epoch(self.epoch)
        if self.sampler is None:
            skip = self.position.batch
        generator = getattr(self.loader, "generator", None)
        if self.sampler is not None and isinstance(generator, torch.Generator):
            # Nothing but the workers' seeds comes from it: the same in this epoch, whichever attempt gets there.
            generator.manual_seed(self.job.seed + self.job.rank + 1_000_003 * self.epoch)
        with self.job.stop.shielded():
            iterator = iter(self.loader)
        batches = islice(iterator, skip, None if self.sampler else self._per_epoch)
        self._restore_rng()
        for batch in batches:
            self._open = True
            yield batch
            self._close_step()

    def _restore_rng(self) -> None:
        """Last of all: iter(loader) draws from torch's global stream."""
        if self._rng_pending and self.checkpointer is not None:
            self.checkpointer.restore_rng()
        self._rng_pending = False

    def _close_step(self) -> None:
        """What comes between two steps."""
        if not self._open:
            return
        self._open = False
        self.position.step += 1
        self.position.batch += 1
        self.job.step = self.step
        if self.sampler is not None:
            self.sampler.advance(_batch_size(self.loader))
        self._write_metrics()
        if self.every_s and self.job.rank == 0 and time.monotonic() >= self._next_save:
            self.job.word.set("save")
            self._next_save = float("inf")  # until it has been done
        self._heed(self.job.word.tick())

    def _heed(self, agreed: Agreed | None) -> None:
        """Acts on what all ranks know, and on what all ranks can count; never on what this rank alone sees."""
        if agreed is not None and agreed.stop:
            self._stop(agreed.stop)
        if (agreed is not None and agreed["save"]) or (self.every_steps and self.step % self.every_steps == 0):
            self.save()

    def _stop(self, reason: str) -> None:
        self.job.event("signal", name=self.job.stop.name_of(reason), step=self.step)
        self.job.metrics.flush()
        self.save()
        self.job.event("stopped", step=self.step, reason=reason)
        raise Stopped(reason, self.step)

    def _finish(self) -> None:
        self._restore_rng()
        self.job.word.drain()
        self.save()
        self.job.metrics.flush()

    def _write_metrics(self) -> None:
        fields = {"step": self.step, "total": self.total_steps, "epoch": self.epoch}
        self.job.metrics.step(fields, self._logged)
        self._logged = {}


def _batch_size(loader: Any) -> int:
    """Samples of one full batch of one rank; the last, shorter one ends the epoch, where the sampler stops counting."""
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", 1)
    return int(size or 1)
