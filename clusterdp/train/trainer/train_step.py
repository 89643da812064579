"""The two functions with which Trainer handles a batch. You can replace each of them by your own function.

def forward(trainer, batch):                       # Trainer(..., forward=forward)
    outputs = trainer.model(batch["image"])
    return trainer.loss(outputs, batch["label"]), outputs, batch["label"]

def step(trainer, batch):                          # Trainer(..., step=step): two optimizers, two losses, ...
    ...
    return {"loss": loss, "penalty": penalty}
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.train.optim.accumulation import gradient_sync

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer


def forward(trainer: Trainer, batch: Any) -> Any:
    """Runs the model on (x, y) or (x1, x2, y): the last part is the target. The Trainer uses forward() for training and
    for evaluation."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2 or trainer.loss is None:
        what = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, list | tuple) else "")
        raise ConfigError(
            f"Trainer: a batch is {what}{'' if trainer.loss else ', and there is no loss'}; (inputs, targets) and a "
            "loss are needed. Pass forward=, a function of (trainer, batch) that returns the loss."
        )
    *inputs, targets = batch
    try:
        outputs = trainer.model(*inputs)
    except TypeError:
        _check_inputs(trainer.net, inputs)
        raise
    return trainer.loss(outputs, targets), outputs, targets


def _check_inputs(net: torch.nn.Module, inputs: list[Any]) -> None:
    """Raises ConfigError if the model does not take this number of inputs."""
    signature = inspect.signature(net.forward)
    try:
        signature.bind(*inputs)
    except TypeError:
        given = f"{len(inputs)} ({', '.join(type(each).__name__ for each in inputs)})"
        raise ConfigError(
            f"Trainer: {type(net).__name__}.forward() takes {signature}, and a batch has {given} before its target. "
            "For two inputs pass fit((x1, x2, y)), the target last; else forward=, a function of (trainer, batch) that "
            "returns (loss, outputs, targets)."
        ) from None


def step(trainer: Trainer, batch: Any) -> Mapping[str, Any]:
    """Runs forward, backward and, at the end of a window, the optimizer's step. Returns the values to log."""
    loop, optimizer = trainer.loop, trainer.optimizer
    assert loop is not None
    if optimizer is None:
        raise ConfigError("Trainer: there is no optimizer to step. Pass one, or a step= of your own.")
    ends, lap = loop.window_ends, trainer.job.stopwatch.lap
    with gradient_sync(trainer.model, ends):
        with trainer.autocast():
            loss, outputs, targets = parts_of(trainer.forward(trainer, batch))
        if trainer.nan_guard is not None:
            loss = trainer.nan_guard.watch(loss, loop.samples)
        lap("forward")
        trainer.amp.backward(loss if loop.window == 1 else loss / loop.window)
    lap("backward")
    if ends:
        trainer.amp.step(optimizer, **trainer.step_options)
        optimizer.zero_grad()
        if trainer.scheduler is not None and trainer.scheduler_every == "step":
            trainer.scheduler.step()
        lap("optimizer")
    loss = loss.detach()
    skips = trainer.nan_guard is not None and trainer.nan_guard.on_nan == "skip"
    trainer.scores.add(batch, loss, outputs, targets, only_finite=skips)
    lap("metrics")
    return {"loss": loss}


def outputs(trainer: Trainer, batch: Any) -> Any:
    """Returns the model's outputs for a prediction. If the user has passed a forward(), it is used, because it knows
    which part of the batch goes into the model."""
    if trainer.forward is forward:
        return trainer.model(*inputs_of(batch))
    try:
        given = trainer.forward(trainer, batch)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note("predict asked the Trainer's forward. For data without targets: predict(forward=...).")
        raise
    if not isinstance(given, tuple) or len(given) != 3:
        raise ConfigError(
            "predict: the Trainer's forward returned the loss alone. Return (loss, outputs, targets) from it, or pass "
            "predict(forward=...), a function of (trainer, batch) that returns the outputs."
        )
    return given[1]


def parts_of(given: Any) -> tuple[torch.Tensor, Any, Any]:
    """Returns (loss, outputs, targets) from the return value of forward(), which may be the loss alone."""
    loss, outputs, targets = given if isinstance(given, tuple) and len(given) == 3 else (given, None, None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(f"Trainer: the loss is {what}. Return one number, such as its mean(), from loss or forward.")
    return loss, outputs, targets


def inputs_of(batch: Any) -> tuple[Any, ...]:
    """Returns the model's inputs for a prediction: x, both for a batch (x, y) and for (x,)."""
    if not isinstance(batch, list | tuple):
        return (batch,)
    return tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)
