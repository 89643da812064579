"""Three common functions of (trainer, row), which a Trainer calls after each epoch, on all ranks.

    def tell(trainer, row):
        if row["val_accuracy"] > 0.99:
            trainer.stop()

    Trainer(..., on_epoch=[tell, early_stopping("val_loss", patience=3), keep_best("val_accuracy", mode="max")])

Callbacks read the past from trainer.history, which survives preemptions. Pass other state of a callback in
Trainer(state=), so that it is saved, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterdp.errors import ConfigError

if TYPE_CHECKING:
    from clusterdp.train.loop.history import EpochRow
    from clusterdp.train.trainer.trainer import Trainer

OnEpoch = Callable[["Trainer", "EpochRow"], Any]


def functions(where: str, given: Any) -> list[Callable[..., Any]]:
    """Returns the callbacks as a list. Raises ConfigError for objects that cannot be called, such as another library's
    callbacks."""
    calls = [given] if callable(given) else list(given)
    for call in calls:
        if isinstance(call, type) or not callable(call):
            name = call.__name__ if isinstance(call, type) else type(call).__name__
            raise ConfigError(f"{where}: a {name} is not a function. Pass one; see clusterdp.train.trainer.callbacks.")
    return calls


def early_stopping(monitor: str = "val_loss", *, patience: int = 3, mode: str = "min", least: float = 0.0) -> OnEpoch:
    """Ends the training when `monitor` has not become better by more than `least` for `patience` epochs; epochs without
    an evaluation do not count. A resume with more epochs continues the training, and restarts the count."""
    sign = 1 if mode == "min" else -1

    def watch(trainer: Trainer, row: EpochRow) -> None:
        if not _has(trainer, row, monitor, mode):
            return
        gone_on = trainer.loop.position.continued if trainer.loop is not None else 0
        best, since = float("inf"), 0
        for epoch, value in enumerate(trainer.history[monitor], 1):
            if value is None:  # an epoch without an evaluation
                since = 0 if epoch == gone_on else since
                continue
            better = sign * value < best - least
            best, since = (sign * value, 0) if better else (best, 0 if epoch == gone_on else since + 1)
        if since >= patience:
            trainer.stop(f"{monitor} has not become better for {since} epochs")

    return watch


def keep_best(monitor: str = "val_loss", *, mode: str = "min") -> OnEpoch:
    """Saves the model beside the checkpoints when `monitor` is better than at the last such save. trainer.load_best()
    loads the saved model. A failed save is reported, and the training continues."""

    def keep(trainer: Trainer, row: EpochRow) -> None:
        if not _has(trainer, row, monitor, mode):
            return
        trainer.best_model.save_if_better(monitor, mode)

    return keep


def plateau(scheduler: Any, monitor: str = "val_loss") -> OnEpoch:
    """Steps torch's ReduceLROnPlateau with the value `monitor`. Trainer(scheduler=) always uses the loss. Save the
    scheduler with Trainer(state={"plateau": scheduler})."""

    def step(trainer: Trainer, row: EpochRow) -> None:
        if _has(trainer, row, monitor):
            scheduler.step(row[monitor])

    return step


def _has(trainer: Trainer, row: EpochRow, monitor: str, mode: str = "min") -> bool:
    """Returns whether the row has the value; an epoch without an evaluation has none. Raises ConfigError for a wrong
    name or mode."""
    if trainer.skips_val and monitor not in row:
        return False
    trainer.history.best(monitor, mode)
    return True
