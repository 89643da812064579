"""Scores: the loss and the metrics of an epoch, or of an evaluation, over all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import check_takes
from clusterdp.train.data.datasets import size_of
from clusterdp.train.data.prefetch import map_tensors
from clusterdp.train.job import JobHandle
from clusterdp.train.loop.history import History
from clusterdp.train.ranks.group import Group
from clusterdp.train.trainer.meters import Meters
from clusterdp.train.trainer.metric_names import by_name

Metrics = Mapping[str, Any] | Sequence[Callable[..., Any] | str] | Callable[..., Any] | str


class Scores:
    """metrics: the metrics as passed to Trainer. Objects are copied, because training and evaluation must not add up in
    the same object."""

    def __init__(self, metrics: Metrics, group: Group):
        self.meters = Meters(group)
        self.added = False  # whether values were added in the current step
        listed: Any = metrics if isinstance(metrics, Mapping | list | tuple) else [metrics]
        if not isinstance(listed, Mapping) and any(getattr(metric, "__name__", "") == "<lambda>" for metric in listed):
            raise ConfigError('metrics: a lambda has no name. Give it one: metrics={"accuracy": lambda ...}.')
        named = listed if isinstance(listed, Mapping) else {_name_of(metric): metric for metric in listed}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._objects: list[Any] = []
        for name, metric in named.items():
            metric = by_name(metric) if isinstance(metric, str) else metric
            if callable(getattr(metric, "update", None)) and callable(getattr(metric, "compute", None)):
                metric = copy.deepcopy(metric)
                if callable(to := getattr(metric, "to", None)):
                    metric = to(group.device)
                self.meters.attach(name, metric)
                self._objects.append(metric)
            elif callable(metric):
                check_takes(f"metrics.{name}", metric, "outputs", "targets")
                self._functions[name] = metric
            else:
                raise ConfigError(
                    f"metrics.{name}: a {type(metric).__name__} is neither a name, a function of (outputs, targets) "
                    "nor an object with update() and compute(). Pass one of them."
                )

    def history(self, with_val: bool) -> History:
        """Returns a History with the columns of an epoch; without a row if the names of an object's numbers are not
        known beforehand."""
        names = ["loss", *self._functions]
        columns = ["epoch", "step", *names, *(f"val_{name}" for name in names if with_val), "lr"]
        return History([] if self._objects else [dict.fromkeys(columns)])

    def add_values(self, batch: Any, values: Mapping[str, Any]) -> None:
        """Adds the numbers that a user's step returned, and skips anything else."""
        size = size_of(batch)
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                if value.numel() == 1 and not value.is_complex():
                    self._mean(size, None, name, value.detach().reshape(()))
            elif isinstance(value, int | float):
                self._mean(size, None, name, value)

    def add(
        self, batch: Any, loss: torch.Tensor, outputs: Any = None, targets: Any = None, *, only_finite: bool = False
    ) -> None:
        """Adds one batch. add() does not wait for the device, and keeps no autograd graph. only_finite: whether to skip
        a batch whose loss is not finite; with metric objects, add() then waits for the device.
        """
        self.added = True
        size = size_of(batch)
        counts = loss.detach().isfinite() if only_finite else None
        self._mean(size, counts, "loss", loss)
        if outputs is None or not (self._functions or self._objects):
            return
        with torch.no_grad():
            outputs = map_tensors(outputs, torch.Tensor.detach)
            for name, function in self._functions.items():
                self._mean(size, counts, name, _checked(name, function(outputs, targets), size))
            if self._objects and (counts is None or bool(counts)):
                for metric in self._objects:
                    metric.update(outputs, targets)

    def _mean(self, size: int, counts: torch.Tensor | None, name: str, value: Any) -> None:
        weight: Any = size or 1
        if counts is not None:
            value = torch.as_tensor(value, device=counts.device).float().mean()
            value, weight = value.where(counts, 0.0), counts * float(weight)
        self.meters.mean(weight, **{name: value})


def show_matrices(job: JobHandle, matrices: Mapping[str, Any]) -> None:
    """Writes matrices to TensorBoard as grey pictures, 16 pixels a cell: 0 is black, the largest value white."""
    board: Any = job.tensorboard if matrices else None
    for name, rows in matrices.items() if board is not None else ():
        values = torch.tensor(rows, dtype=torch.float32).nan_to_num()
        if values.ndim == 2:
            scaled = values / values.abs().max().clamp(min=1e-12)
            with suppress(OSError):  # a full disk, of which the log of scalars warns
                picture = scaled.repeat_interleave(16, 0).repeat_interleave(16, 1)
                board.add_image(name, picture, job.step, dataformats="HW")


def _name_of(metric: Any) -> str:
    return metric if isinstance(metric, str) else str(getattr(metric, "__name__", type(metric).__name__)).lower()


def _checked(name: str, value: Any, size: int) -> Any:
    if isinstance(value, torch.Tensor):
        if value.ndim == 0 or value.shape == (size,):
            return value
        got = f"a tensor of shape {tuple(value.shape)} for a batch of {size}"
    elif isinstance(value, int | float):
        return value
    else:
        got = f"a {type(value).__name__}"
    raise ConfigError(f"metrics.{name}: returned {got}. Return a number, or one number a sample.")
