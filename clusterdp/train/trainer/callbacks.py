"""Callbacks: functions that a Trainer calls, on all ranks, and three common ones.

    def tell(trainer, row):
        if row["val_accuracy"] > 0.99:
            trainer.stop()

    Trainer(..., on_epoch=[tell, early_stopping("val_loss", patience=3), keep_best("val_accuracy", mode="max")])

A callback of other moments is an object with one or several of these methods:

    on_start(trainer)              before the first step of fit(), in each attempt; the state is restored
    on_step(trainer, values)       after each step
    on_validation(trainer, row)    after each evaluation of fit()
    on_epoch(trainer, row)         after each epoch, and its evaluation
    on_exception(trainer, error)   when an error or Ctrl-C ends fit(), on the rank that has it; others may be waiting in
                                   a step, so without collectives. Not at a stop, after which the run resumes
    on_end(trainer)                at the end of fit(), also if a later attempt finds nothing left to train

    class Worst:
        per_rank = True                                  # the loss of a step is this rank's own
        def __init__(self): self.loss = 0.0
        def on_step(self, trainer, values): self.loss = max(self.loss, float(values["loss"]))
        def state_dict(self): return {"loss": self.loss}
        def load_state_dict(self, state): self.loss = state["loss"]

    Trainer(..., callbacks=[Worst(), early_stopping()])

The state of an object with state_dict() and load_state_dict() is saved. Callbacks read the past from trainer.history,
which survives preemptions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import MEANT, check_takes, checked
from clusterdp.train.loop.history import EpochRow, History
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer

OnStep = Callable[["Trainer", Mapping[str, Any]], Any]
OnEpoch = Callable[["Trainer", "EpochRow"], Any]
MOMENTS = {  # -> the arguments after the trainer
    "on_start": (),
    "on_step": ("values",),
    "on_validation": ("row",),
    "on_epoch": ("row",),
    "on_exception": ("error",),
    "on_end": (),
}


class Callbacks:
    """The functions that a Trainer calls. on_step, on_epoch: those of these moments; others may be appended. state:
    the objects that have state, by name."""

    def __init__(self, given: Any, on_step: Any, on_epoch: Any):
        self.on_step, self.on_epoch = _functions("on_step", on_step), _functions("on_epoch", on_epoch)
        self._at: dict[str, list[Callable[..., Any]]] = {moment: [] for moment in MOMENTS}
        self._at |= {"on_step": self.on_step, "on_epoch": self.on_epoch}
        self.state: dict[str, Any] = {}
        self.are_running = False  # saves and stops wait meanwhile, because a resume would close the same epoch twice
        for each in given if isinstance(given, Sequence) else [given]:
            self._add(each)

    def _add(self, each: Any) -> None:
        named = [] if isinstance(each, type) else [name for name in dir(each) if name.startswith("on_")]
        methods = [name for name in named if callable(getattr(each, name))]
        if not methods:
            self.on_epoch.extend(_functions("callbacks", [each]))
            return
        name = type(each).__name__
        for method in methods:
            if method not in MOMENTS:
                remedy = MEANT.get(method, f"There are: {', '.join(MOMENTS)}")
                raise ConfigError(f"callbacks: {name}.{method}() would never be called. {remedy}.")
            check_takes(f"callbacks: {name}", getattr(each, method), "trainer", *MOMENTS[method])
            self._at[method].append(getattr(each, method))
        if callable(getattr(each, "state_dict", None)):
            key, number = f"callback.{name}", 1
            while key in self.state:
                number += 1
                key = f"callback.{name}.{number}"
            self.state[key] = each

    @property
    def monitors(self) -> list[str]:
        """The values that early_stopping() and the like look at, up to the first function of the user, which may add
        columns to the history."""
        calls = [*self.on_step, *self._at["on_validation"], *self.on_epoch]
        return [*takewhile(bool, (getattr(call, "monitor", "") for call in calls))]

    def call(self, moment: str, trainer: Trainer, *given: Any) -> None:
        """Calls the functions of a moment between two steps."""
        if not self._at[moment]:
            return
        before, self.are_running, began = self.are_running, True, time.monotonic()
        try:
            for call in self._at[moment]:
                call(trainer, *given)
        finally:
            self.are_running = before
        trainer.job.flags.discount(time.monotonic() - began)

    def around(self, trainer: Trainer, epochs: Iterable[Any]) -> Iterator[Any]:
        """Yields the epochs of a fit()."""
        has_begun = False
        for epoch in epochs:
            if not has_begun:  # the state is restored by now
                self.call("on_start", trainer)
            has_begun = True
            yield epoch
        if not has_begun:
            self.call("on_start", trainer)
        self.call("on_end", trainer)

    def note_error(self, trainer: Trainer, error: BaseException) -> None:
        """Calls the functions for the error that ends fit(). An error of theirs is printed, and does not replace it."""
        try:
            self.call("on_exception", trainer, error)
        except Exception as other:  # user code runs here, and may raise anything
            say(f"clusterdp: callbacks: on_exception failed: {type(other).__name__}: {other}", error=True)


def _functions(where: str, given: Any) -> list[Callable[..., Any]]:
    """Returns the callbacks as a list. Raises ConfigError for objects that cannot be called, such as another library's
    callbacks."""
    calls = list(given) if isinstance(given, Iterable) and not callable(given) else [given]
    for call in calls:
        if isinstance(call, type) or not callable(call):
            name = call.__name__ if isinstance(call, type) else type(call).__name__
            what = "it in callbacks=[...]" if hasattr(call, "on_epoch") and where != "callbacks" else "one"
            raise ConfigError(
                f"{where}: a {name} is not a function. Pass {what}; see clusterdp.train.trainer.callbacks."
            )
        check_takes(where, call, "trainer", *MOMENTS.get(where, ("row",)))
    return calls


@checked
def early_stopping(
    monitor: str = "val_loss", *, patience: int = 3, mode: str = "min", least: float = 0.0, load_best: bool = False
) -> Any:
    """Ends the training when `monitor` has not become better by more than `least` for `patience` epochs; epochs without
    an evaluation do not count. A resume with more epochs continues the training, and restarts the count.

    load_best: whether the model has its best epoch's weights after fit(), as with keep_best() and load_best(). Then
    pass it in Trainer(callbacks=[...])."""
    sign = 1 if mode == "min" else -1

    def watch(trainer: Trainer, row: EpochRow) -> None:
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

    return _LoadsBest(watch, monitor, mode) if load_best else _looking_at(monitor, mode, watch)


class _LoadsBest:
    """Loads the best model at the end of fit()."""

    def __init__(self, watch: OnEpoch, monitor: str, mode: str):
        def on_epoch(trainer: Trainer, row: EpochRow) -> None:
            trainer.best_model.save_if_better(monitor, mode)
            watch(trainer, row)

        self.on_epoch = _looking_at(monitor, mode, on_epoch)

    def on_end(self, trainer: Trainer) -> None:
        trainer.load_best()


@checked
def keep_best(monitor: str = "val_loss", *, mode: str = "min") -> OnEpoch:
    """Saves the model beside the checkpoints when `monitor` is better than at the last such save. trainer.load_best()
    loads the saved model. A failed save is reported, and the training continues."""
    return _looking_at(monitor, mode, lambda trainer, row: trainer.best_model.save_if_better(monitor, mode))


@checked
def plateau(scheduler: Any, monitor: str = "val_loss") -> OnEpoch:
    """Steps torch's ReduceLROnPlateau with the value `monitor`. Trainer(scheduler=) always uses the loss. Save the
    scheduler with Trainer(state={"plateau": scheduler})."""
    return _looking_at(monitor, "min", lambda trainer, row: scheduler.step(row[monitor]))


def _looking_at(monitor: str, mode: str, function: OnEpoch) -> OnEpoch:
    """Returns the function for epochs that have the value `monitor`; an epoch without an evaluation has none. Raises
    ConfigError for a wrong mode; the returned function, for a wrong name."""
    History().best(monitor, mode)

    def on_epoch(trainer: Trainer, row: EpochRow) -> None:
        if not trainer.skips_val or monitor in row:
            trainer.history.best(monitor, mode)
            function(trainer, row)

    on_epoch.monitor = monitor  # type: ignore[attr-defined]
    return on_epoch
