"""Position: the progress of the training, counted in batches that the loop has finished, not in fetched batches.

This module also has the state of loaders without a ResumableSampler.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from clusterdp.checkpoint.state import rng
from clusterdp.train.data.batch_mark import LastBatch
from clusterdp.train.data.loader_identity import facts

SAVED = "step epoch batch ended epochs limit last continued global_batch left"  # attributes of a Position


class Position:
    """The number of finished steps, epochs and batches, as part of the saved state. Samples are counted by the sampler
    instead.

    If a training was ended early and more epochs are requested later, the training continues."""

    def __init__(self, global_batch: int = 0) -> None:
        self.step = 0  # finished batches of all epochs
        self.epoch = 0  # finished epochs
        self.batch = 0  # finished batches of this epoch
        self.ended = False  # whether the epoch has no more batches; the code after the epoch may not be done yet
        self.epochs = 0  # requested
        self.limit = 0  # requested steps; 0 if there is no such limit
        self.last: int | None = None  # number of epochs after which the training was ended early; else None
        self.at_limit = False  # whether max_steps is reached; not saved, because a later attempt may have another limit
        self.continued = 0  # the value of `last` from which a training has continued
        self.left: int | None = None  # batches after which the program left the previous epoch early; else None
        self.global_batch = global_batch  # number of samples that all ranks together take in a step; 0 if unknown
        self.saved_global_batch = global_batch  # the global_batch of the restored checkpoint

    def advance(self) -> None:
        self.step += 1
        self.batch += 1

    @property
    def finished(self) -> bool:
        """Whether no epoch is left."""
        if self.at_limit and not self.batch:  # else the code after the epoch is not done yet
            return True
        return self.epoch >= (self.epochs if self.last is None else min(self.epochs, self.last))

    def end_at_limit(self, at_limit: bool) -> None:
        """Ends the epoch if max_steps is reached, or if the training was ended early in it. An attempt that was stopped
        after its last step still closes it."""
        self.at_limit = at_limit
        self.ended = self.ended or (self.is_cut and self.batch > 0)

    @property
    def is_cut(self) -> bool:
        """Whether the current epoch ends before its last batch, because the training ends."""
        return self.last is not None or self.at_limit

    @property
    def is_last_epoch(self) -> bool:
        """Whether the training ends with the current epoch, as far as is known."""
        return self.is_cut or self.epoch + 1 >= self.epochs

    def is_due(self, every: int) -> bool:
        """Whether the work of every n-th epoch is due after the current one. The last epoch has it, too."""
        return self.is_last_epoch or (self.epoch + 1) % every == 0

    def next_epoch(self) -> None:
        self.epoch += 1
        self.batch = 0
        self.ended = False

    def go_on_from(self, other: Position) -> None:
        """Takes over another loop's position, in memory. If that loop was left within an epoch, the epoch begins
        again."""
        self.load_state_dict({**other.state_dict(), "batch": 0})

    def state_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in SAVED.split()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step, self.epoch, self.batch = state["step"], state["epoch"], state["batch"]
        self.ended = bool(state["ended"])
        self.last, self.continued, self.left = state.get("last"), state.get("continued", 0), state.get("left")
        more_epochs = self.epochs > state.get("epochs", self.epochs)
        if self.last is not None and (more_epochs or self.limit > state.get("limit", self.limit)):
            self.continued = self.last
            self.last = None
        self.saved_global_batch = state["global_batch"]


class EpochRng:
    """The random state at an epoch's start, before the loader's iterator was made. A sampler of another library draws
    its order from this state or from the loader's generator, whose state changes within the epoch."""

    per_rank = True

    def __init__(self, loader: Any):
        generator = getattr(loader, "generator", None)
        self.generator = generator if isinstance(generator, torch.Generator) else None
        self.facts = facts(loader)
        self.saved_facts: Mapping[str, Any] = {}  # the loader's facts in the restored checkpoint
        self.apart = True  # whether the loader draws from its own streams; False if an older version began the epoch
        self.last: LastBatch | None = None  # the batch of the epoch that the program is using
        self.saved_mark: int | None = None  # the batch's mark in the restored checkpoint
        self._before: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}

    def note(self) -> None:
        self.apart = True
        self._before = {"streams": rng.capture(), "generator": self._generator_state()}

    def rewind(self) -> None:
        """Restores the random state that note() has recorded, so that the next iterator repeats the earlier iterator.
        The caller restores the present streams afterwards."""
        if self._before:
            rng.apply(self._before["streams"])
            self._set_generator(self._before["generator"])

    def forward(self) -> None:
        """Sets the generator to its state after the iterator of this epoch."""
        if self._restored:
            self._set_generator(self._restored["generator"])

    def state_dict(self) -> dict[str, Any]:
        streams = {"before": self._before, "generator": self._generator_state()}
        mark = self.last.mark if self.last is not None else self.saved_mark
        return {**streams, "facts": self.facts, "apart": self.apart, "mark": mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored, self._before = state, state["before"]
        self.saved_facts, self.apart = state.get("facts", {}), state.get("apart", False)
        self.last, self.saved_mark = None, state.get("mark")

    def _generator_state(self) -> torch.Tensor | None:
        return self.generator.get_state() if self.generator is not None else None

    def _set_generator(self, state: torch.Tensor | None) -> None:
        if self.generator is not None and state is not None:
            self.generator.set_state(state.clone())


class LoaderState:
    """The state of a loader, or of its data set, that keeps its own position."""

    def __init__(self, loader: Any, position: Position, world_size: int):
        self.loader = loader
        self.position = position
        self.world_size = world_size
        # Mosaic counts the samples of all ranks. Any other position belongs to one rank.
        self.per_rank = not counts_samples(getattr(loader, "dataset", None))
        self.restored = False

    @staticmethod
    def is_kept_by(loader: Any) -> bool:
        return _is_stateful(loader) or counts_samples(getattr(loader, "dataset", None))

    def state_dict(self) -> Any:
        if _is_stateful(self.loader):
            return self.loader.state_dict()
        data = self.loader.dataset
        done = min(self.position.batch * self.loader.batch_size, len(data))  # the last batch may be shorter
        return data.state_dict(num_samples=done * self.world_size, from_beginning=True)

    def load_state_dict(self, state: Any) -> None:
        self.restored = True
        (self.loader if _is_stateful(self.loader) else self.loader.dataset).load_state_dict(state)


def counts_samples(dataset: Any) -> bool:
    """Returns whether the data set has Mosaic's state_dict(num_samples, from_beginning)."""
    if not _is_stateful(dataset):
        return False
    return {"num_samples", "from_beginning"} <= set(inspect.signature(dataset.state_dict).parameters)


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
