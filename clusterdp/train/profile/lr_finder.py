"""LrFinder: trains with a learning rate that grows from step to step, and finds the rate at which the loss falls
fastest: L. N. Smith, Cyclical Learning Rates for Training Neural Networks, https://arxiv.org/abs/1506.01186.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from clusterdp.errors import ConfigError

FIRST, LAST = 1e-7, 10.0
SMOOTHING = 0.9  # weight of the earlier losses in the mean; without it, noise of the batches would choose
DIVERGED = 3.0  # times the fall of the loss; losses that have risen by more are not shown
ROWS = 12


class LrFinder:
    """The rates are those of each optimizer's first group. Other groups keep their ratio to it. A scheduler has no
    effect meanwhile. rows: (rate, smoothed loss) of each step that logged a loss."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], steps: int):
        self.steps = steps
        self.rows: list[tuple[float, float]] = []
        self._done, self._mean, self._weight = 0, 0.0, 0.0
        self._hooks = []
        for optimizer in optimizers:
            base = float(optimizer.param_groups[0]["lr"])
            ratios = [float(group["lr"]) / base if base else 1.0 for group in optimizer.param_groups]
            self._hooks.append(optimizer.register_step_pre_hook(lambda its, *_, of=ratios: self._set(its, of)))
        if not self._hooks:
            raise ConfigError(
                "find lr: the loop's state has no optimizer. Pass it: job.loop(loader, {..., optimizer})."
            )

    @property
    def rate(self) -> float:
        """The rate of the present step."""
        return float(FIRST * (LAST / FIRST) ** (min(self._done, self.steps - 1) / max(1, self.steps - 1)))

    def _set(self, optimizer: torch.optim.Optimizer, ratios: list[float]) -> None:
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            value = self.rate * ratio
            # A capturable optimizer has its rate in a tensor.
            group["lr"] = group["lr"].fill_(value) if isinstance(group["lr"], torch.Tensor) else value

    def add(self, values: Mapping[str, Any]) -> None:
        """Adds the values that a step has logged. The loss is `loss`, or else the first value."""
        value = values.get("loss", next(iter(values.values()), None))
        loss = float(value) if isinstance(value, int | float | torch.Tensor) else math.nan
        if math.isfinite(loss):
            self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
            self._weight = SMOOTHING * self._weight + 1 - SMOOTHING
            self.rows.append((self.rate, self._mean / self._weight))
        self._done += 1

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def _sound(self) -> list[tuple[float, float]]:
        """The rows until the loss has diverged."""
        least, found = math.inf, list[tuple[float, float]]()
        for rate, loss in self.rows:
            least = min(least, loss)
            first = self.rows[0][1]
            if loss - least > max(DIVERGED * (first - least), abs(first)) and len(found) > 2:
                break
            found.append((rate, loss))
        return found

    @property
    def best(self) -> float | None:
        """The rate of the steepest fall before the least loss; None if the loss does not fall."""
        rows = self._sound
        end = min(range(len(rows)), key=lambda place: rows[place][1], default=0)
        begin = max(1, len(self.rows) // 10)  # the mean of few losses is noise
        falls = {rows[place][0]: rows[place + 1][1] - rows[place - 1][1] for place in range(begin, end)}
        steepest = min(falls, key=lambda rate: falls[rate], default=None)
        return steepest if steepest is not None and falls[steepest] < 0 else None

    def lines(self) -> list[str]:
        """Returns the table, and then the advice."""
        rows = self._sound
        if not rows:
            return ["No step has logged a loss. Write loop.log(loss=loss)."]
        shown = rows[:: max(1, math.ceil(len(rows) / ROWS))]
        table = [f"{'lr':>10}{'loss':>12}", *(f"{rate:>10.1e}{loss:>12.4g}" for rate, loss in shown)]
        if self.best is None:
            return [*table, "", "The loss does not fall at any rate. Look at the data and the loss."]
        least = min(rows, key=lambda row: row[1])[0]
        grows = f", and rises after {least:.1e}" if len(rows) < len(self.rows) or rows[-1][0] > least else ""
        advice = f"Try lr: {self.best:.1e}, where the loss falls fastest{grows}."
        return [*table, "", f"{advice} Another batch size takes another rate."]

    def __repr__(self) -> str:
        return "\n".join(self.lines())
