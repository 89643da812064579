"""Metrics that a Trainer knows by name: Trainer(metrics=["accuracy"]). Each gives one number per sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.wording import closest


def accuracy(outputs: torch.Tensor, targets: torch.Tensor, most: int = 1) -> torch.Tensor:
    """Returns 1 for samples whose class is among the `most` largest outputs, else 0. With one output per sample, the
    class is 1 for a positive output (a logit), and 0 otherwise. Other dimensions of a sample are averaged."""
    if outputs.ndim == targets.ndim or outputs.shape[1] == 1:  # one logit per target
        right = (outputs.reshape(targets.shape) > 0) == (targets > 0.5)
    else:
        most = min(most, outputs.shape[1])
        right = (outputs.topk(most, 1).indices == targets.unsqueeze(1)).any(1)
    return right.float().flatten(1).mean(1) if right.ndim > 1 else right.float()


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
