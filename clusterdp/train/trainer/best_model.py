"""BestModel: the model of the best epoch, saved beside the run's checkpoints, for keep_best and load_best().

Each phase keeps only the newest best model. The model is saved with its row of the history, which identifies it: a run
that has gone back to an older step, and then trains differently, has other rows, even at the same step.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.checkpoint import Checkpointer, Restored
from clusterdp.checkpoint.state.stateful import unwrap
from clusterdp.checkpoint.state.tree import is_sharded
from clusterdp.errors import ConfigError
from clusterdp.train.loop.history import EpochRow, History
from clusterdp.train.loop.save_schedule import Tolerance
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer


class BestModel:
    """The best model, kept in memory if the run has no place for checkpoints. All methods are collective. A failed save
    is reported and never ends the run, because the run's own checkpoints are complete."""

    def __init__(self, trainer: Trainer, model: torch.nn.Module):
        self._trainer, self._model = trainer, model
        self._job, self._history = trainer.job, trainer.history
        self._tolerate = Tolerance(trainer.job.this_rank, trainer.job.record, "the best model")
        self._opened: Checkpointer | InMemory | None = None
        self._kept: Any = None  # the metadata of the saved model
        self._rule: tuple[str, str] | None = None  # monitor and mode
        self._looked = False  # whether save_if_better() has read the metadata of an earlier attempt

    def save(self) -> None:
        """Saves the present model, and waits until it is durable."""
        with self._tolerate():
            self._save(self._checkpointer())

    def save_if_better(self, monitor: str, mode: str) -> None:
        """Saves the model if the newest epoch is better than the epoch of the saved model. (An even better epoch may
        not be saved, because its save failed.) Raises ConfigError for a second rule, because one model is kept."""
        before, self._rule = self._rule or (monitor, mode), (monitor, mode)
        if before != self._rule:
            raise ConfigError(
                f"keep_best: this Trainer keeps its best model by {before[0]} ({before[1]}), and cannot keep another "
                f"by {monitor} ({mode}). Leave one out; early_stopping(load_best=True) keeps one, too."
            )
        with self._tolerate():
            checkpointer = self._checkpointer()
            if not self._looked:
                self._kept, self._looked = checkpointer.peek(), True
            row: EpochRow = self._history[-1]
            kept = self._row(self._kept)
            if monitor in row and History([*([kept] if kept else []), row]).best(monitor, mode) is row:
                self._save(checkpointer)
                self._say(f"kept as the best model: {monitor} {row[monitor]:.4g}")

    def load(self) -> int | None:
        """Loads the best model, and returns its step. Returns None, and leaves the model unchanged, if this run's past
        has no saved model."""
        checkpointer = self._checkpointer()
        kept = checkpointer.peek()
        if kept is None:
            return None
        if self._history.rows and kept["epoch"] and self._row(kept) is None:
            self._say(
                f"the best model is of epoch {kept['epoch']} as it was before the run went back behind it: it is not "
                "loaded, and the model stays as it is."
            )
            return None
        restored = checkpointer.restore()
        return restored.step if restored is not None else None

    def _save(self, checkpointer: Checkpointer | InMemory) -> None:
        rows = self._history.rows
        meta = {"epoch": len(rows), "row": dict(rows[-1]) if rows else {}}
        loop = self._trainer.loop
        checkpointer.save(loop.step if loop is not None else self._job.step, meta)
        self._kept, self._looked = meta, True
        self._tolerate.failures = 0

    def _say(self, text: str) -> None:
        if self._job.rank == 0:
            say(f"clusterdp: {text}")

    def _row(self, kept: Any) -> EpochRow | None:
        """Returns the row of the history that was the last when `kept` was saved; None if this row is no longer in the
        history."""
        rows = self._history.rows
        if kept is None or not 1 <= kept["epoch"] <= len(rows):
            return None
        row = rows[kept["epoch"] - 1]
        then = kept.get("row", {})  # older versions have saved no row
        return row if all(name in row and _same(row[name], value) for name, value in then.items()) else None

    def _checkpointer(self) -> Checkpointer | InMemory:
        if self._opened is None:
            beside = f"best-{self._trainer.name}" if self._trainer.name else "best"
            self._opened = self._job.checkpointer({"model": self._model}, beside=beside) or InMemory(self._model)
        return self._opened


class InMemory:
    """A Checkpointer, as far as BestModel uses it, that keeps the model in this process's memory. The copy is in host
    memory, which is larger than the device's."""

    def __init__(self, model: torch.nn.Module):
        self._model = unwrap(model)
        self._kept: tuple[int, Any, dict[str, Any]] | None = None

    def save(self, step: int, meta: Any) -> None:
        self._kept = step, meta, {name: copied(value) for name, value in self._model.state_dict().items()}

    def peek(self) -> Any:
        return self._kept[1] if self._kept is not None else None

    def restore(self) -> Restored | None:
        if self._kept is None:
            return None
        step, meta, state = self._kept
        self._model.load_state_dict(state)
        return Restored(step, "", meta, exact=True)


def copied(value: Any) -> Any:
    """Returns a copy in host memory, of a shard on its device."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value.detach().clone() if is_sharded(value) else value.detach().to("cpu", copy=True)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (one != one and other != other))
