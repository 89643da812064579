"""Position: the progress of the training, counted in batches that the loop has finished, not in fetched batches. With
a global batch, steps of the optimizer are counted in their place.

This module also has the state of loaders without a ResumableSampler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from clusterdp.checkpoint.state import rng
from clusterdp.checkpoint.state.generators import generators_of, set_states, states_of
from clusterdp.errors import ConfigError, StateError
from clusterdp.train.data.batch_mark import LastBatch
from clusterdp.train.data.loader_identity import facts

Batch = TypeVar("Batch")
# attributes of a Position
SAVED = "step epoch batch ended epochs limit last continued global_batch accumulate micro_batch left"


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
        self.global_batch = global_batch  # number of samples that all ranks together take in a batch; 0 if unknown
        self.accumulate = 1  # batches in a step of the optimizer
        self.micro_batch = 0  # samples of a micro-batch, where steps of the optimizer are counted, not batches; else 0
        self.saved_global_batch = global_batch  # samples in the optimizer's steps of the restored checkpoint
        self.saved_accumulate, self.saved_micro_batch = 1, 0  # of the restored checkpoint

    def advance(self) -> None:
        self.step += 1
        self.batch += 1

    def check_unit(self) -> None:
        """Raises StateError if the restored checkpoint counts batches, and this loop steps of the optimizer, or the
        reverse."""
        was, now = self.saved_micro_batch, self.micro_batch
        accumulated = self.accumulate if was else self.saved_accumulate
        if bool(was) != bool(now) and accumulated > 1:
            steps = "steps of the optimizer", f"batches, of which {accumulated} make a step"
            raise StateError(
                f"train.global_batch_size: the checkpoint counts {steps[not was]}, and this attempt would count "
                f"{steps[bool(was)]}. {'Set it again' if was else 'Leave it out'}; or begin a new run with "
                "checkpoint.start_from."
            )

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
        self.saved_accumulate = state.get("accumulate", self.accumulate)
        self.saved_micro_batch = state.get("micro_batch", 0)
        self.saved_global_batch = state["global_batch"] * self.saved_accumulate


class Epoch(Generic[Batch]):
    """A pass over the data, or the rest of a pass. Iterate over it once.

    done: number of batches that are already done; use it as in `for i, batch in enumerate(epoch, epoch.done)`.
    """

    def __init__(self, index: int, batches: Callable[[], Iterator[Batch]], done: int = 0):
        self.index, self.done = index, done
        self._batches = batches
        self._was_read = False
        self.is_open = False  # whether the program is in this epoch

    def __repr__(self) -> str:
        """Returns the epoch's number, because programs print epochs like numbers."""
        return str(self.index)

    def __format__(self, spec: str) -> str:
        return format(self.index, spec)

    def __iter__(self) -> Iterator[Batch]:
        self._was_read = True
        return self._batches()

    def __enter__(self) -> Epoch[Batch]:
        self.is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_open = False
        if kind is None and not self._was_read:
            raise ConfigError(f"loop: epoch {self.index} was not read. Write `for batch in epoch:` in it.")


class EpochRng:
    """The random state at an epoch's start, before the loader's iterator was made, and the states of the loader's own
    generators, now or at the epoch's end. A sampler of another library draws its order from the first, or from its own
    generator, whose state changes within the epoch."""

    per_rank = True

    def __init__(self, loader: Any, position: Position):
        self.loader, self.position = loader, position
        self.facts = facts(loader)
        self.saved_facts: Mapping[str, Any] = {}  # the loader's facts in the restored checkpoint
        self.apart = True  # whether the loader draws from its own streams; False if an older version began the epoch
        self.last: LastBatch | None = None  # the batch of the epoch that the program is using
        self.saved_mark: int | None = None  # the batch's mark in the restored checkpoint
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] | None = None  # the generators' states at the epoch's end
        self._restored: dict[str, Any] = {}

    def note(self) -> None:
        self.apart, self._after = True, None
        self._before = {"streams": rng.capture(), "generators": self._states()}

    def note_end(self) -> None:
        """Notes the generators' states before the code after the epoch, which a resumed attempt repeats."""
        self._after = self._states()

    def rewind(self) -> None:
        """Restores the random state that note() has recorded, so that the next iterator repeats the earlier iterator.
        The caller restores the present streams afterwards."""
        if self._before:
            rng.apply(self._before["streams"])
            set_states(generators_of(self.loader), _generators_in(self._before))

    def forward(self) -> list[str]:
        """Sets the generators to their states at the save, once. Returns the names of those that are missing."""
        restored, self._restored = self._restored, {}
        return set_states(generators_of(self.loader), _generators_in(restored))

    def state_dict(self) -> dict[str, Any]:
        now = self._after if self.position.ended and self._after is not None else self._states()
        mark = self.last.mark if self.last is not None else self.saved_mark
        return {"before": self._before, "generators": now, "facts": self.facts, "apart": self.apart, "mark": mark}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored, self._before, self._after = state, state["before"], None
        self.saved_facts, self.apart = state.get("facts", {}), state.get("apart", False)
        self.last, self.saved_mark = None, state.get("mark")

    def _states(self) -> dict[str, Any]:
        return states_of(generators_of(self.loader))


def _generators_in(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the generators' states by name. An older version has saved only the loader's own generator."""
    own = state.get("generator")
    found: dict[str, Any] = state.get("generators", {} if own is None else {"generator": own})
    return found


class LoaderState:
    """The state of a loader, or of its data set, that keeps its own position."""

    def __init__(self, loader: Any, position: Position, world_size: int):
        self.loader, self.position, self.world_size = loader, position, world_size
        # Mosaic counts the samples of all ranks. Any other position belongs to one rank.
        self.per_rank = not counts_samples(getattr(loader, "dataset", None))
        self.restored = self.pending = False  # pending: no iterator was made since the restore
        self._fresh: Any = None  # the state of the data before the restore

    @staticmethod
    def is_kept_by(loader: Any) -> bool:
        return _is_stateful(loader) or counts_samples(getattr(loader, "dataset", None))

    @property
    def _data(self) -> Any:
        """The object in this process that yields the samples and has a state; None if workers have it."""
        data = getattr(self.loader, "dataset", self.loader)
        return data if not getattr(self.loader, "num_workers", 0) and _is_stateful(data) else None

    def state_dict(self) -> Any:
        if _is_stateful(self.loader):
            return self.loader.state_dict()
        data, place = self.loader.dataset, self.position
        done = min(place.batch * self.loader.batch_size, len(data))  # the last batch may be shorter
        if place.epoch and not place.batch:
            done = len(data)  # the data set is at the end of the epoch before, until it is read again
        return data.state_dict(num_samples=done * self.world_size, from_beginning=True)

    def load_state_dict(self, state: Any) -> None:
        self.restored = self.pending = True
        if self.per_rank and callable(getattr(self._data, "set_epoch", None)):
            self._fresh = self._data.state_dict()
        (self.loader if _is_stateful(self.loader) else self.loader.dataset).load_state_dict(state)

    def pass_end(self) -> None:
        """Moves a loader that was restored at the end of an epoch to the start of the next one."""
        # From the state of an ended epoch, torchdata makes two iterators; the first one has no batches. Each iterator
        # draws random numbers, but in the uninterrupted run there was only one. Therefore the first one is made here.
        self.loader.state_dict()
        if (data := self._data) is not None:
            data.load_state_dict(data.state_dict())

    def forget(self) -> None:
        """Makes the data begin anew: Hugging Face's streams keep a state that was loaded, and the next loop would begin
        there if its epoch has the same number."""
        if self._fresh is not None:
            self._data.load_state_dict(self._fresh)
            self._fresh = None


def counts_samples(dataset: Any) -> bool:
    """Returns whether the data set has Mosaic's state_dict(num_samples, from_beginning)."""
    if not _is_stateful(dataset):
        return False
    return {"num_samples", "from_beginning"} <= set(inspect.signature(dataset.state_dict).parameters)


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))
