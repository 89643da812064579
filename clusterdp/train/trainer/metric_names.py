"""Metrics that a Trainer knows by name: Trainer(metrics=["accuracy"]). Each gives one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.wording import closest


def accuracy(outputs: torch.Tensor, targets: torch.Tensor, most: int = 1) -> torch.Tensor:
    """Returns 1 for samples whose class is among the `most` largest outputs, else 0. outputs: the classes are dimension
    1, as in torch's CrossEntropyLoss, or the last one. With one output for each target, a logit, the class is 1 if it
    is positive, and 0 otherwise. Other dimensions of a sample are averaged. Raises ConfigError for other shapes."""
    if outputs.numel() == targets.numel() and 1 in (outputs.ndim, *outputs.shape[1:2]):
        right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
    else:
        if outputs.shape[:1] + outputs.shape[2:] != targets.shape and outputs.shape[:-1] == targets.shape:
            outputs = outputs.movedim(-1, 1)
        if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
            raise ConfigError(
                f"metrics: accuracy is of outputs (samples, classes) and targets (samples), not of {_shape(outputs)} "
                f"and {_shape(targets)}. Pass a function of (outputs, targets)."
            )
        right = (outputs.topk(min(most, outputs.shape[1]), 1).indices == targets.unsqueeze(1)).any(1)
    return right.float().flatten(1).mean(1) if right.ndim > 1 else right.float()


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def error(outputs: torch.Tensor, targets: torch.Tensor, power: int) -> torch.Tensor:
    """Returns the mean of the absolute differences of each sample, to the power of `power`."""
    differences = (outputs.float().reshape(targets.shape) - targets).abs() ** power
    return differences.flatten(1).mean(1) if differences.ndim > 1 else differences


NAMES: dict[str, Callable[..., Any]] = {
    "accuracy": accuracy,
    "acc": accuracy,
    "top_5_accuracy": partial(accuracy, most=5),
    "mse": partial(error, power=2),
    "mae": partial(error, power=1),
}


def by_name(name: str) -> Callable[..., Any]:
    """Returns the metric of this name. Raises ConfigError for an unknown one."""
    if name in NAMES:
        return NAMES[name]
    meant = closest(name, NAMES)
    remedy = f"Did you mean {meant}?" if meant else "Pass a function of (outputs, targets), or a torchmetrics object."
    raise ConfigError(f"metrics: {name!r} is not a name here; there are {', '.join(NAMES)}. {remedy}")
