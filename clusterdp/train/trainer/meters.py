"""Meters: means, sums and extremes over the steps of an epoch and over all ranks, without waiting for the GPU.

    meters = Meters(job.group)
    for x, y in loop:
        ...
        meters.mean(len(x), loss=loss)            # weighted by its samples
        meters.max(norm=norm)
    print(meters.reduce())                        # {"loss": 0.31, "norm": 4.2}: over all ranks, on each rank

Values stay on their device and are added up there in double precision, by one small kernel each. Ranks may have seen
different numbers of batches, or none. With weights, the mean over all ranks equals the mean that one process would
compute over all samples. Meters are saved as state (`per_rank`), so an epoch's numbers are the same after a preemption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked
from clusterdp.train.loop.graph_watch import GraphWatch
from clusterdp.train.output.say import say

if TYPE_CHECKING:
    from clusterdp.train.ranks.group import Group

Value = torch.Tensor | float
ROUNDING = 1e-4  # allowed relative difference of compute() between ranks, because GPUs add up in any order


class Total:
    """A running sum or extreme of numbers on the host and on one device."""

    def __init__(self, kind: str) -> None:
        self.kind = kind  # one of sum, max and min
        self.host = {"sum": 0.0, "max": -math.inf, "min": math.inf}[kind]
        self.on_device: torch.Tensor | None = None

    def add(self, value: Value, times: float = 1.0) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value.detach() if value.requires_grad else value, times)
        elif self.kind == "sum":
            self.host += value * times
        else:
            self.host = _extreme(self.kind, [self.host, float(value)])

    def _add_tensor(self, value: torch.Tensor, times: float) -> None:
        there = self.on_device if self.on_device is not None else self._begin_on(value.device)
        if self.kind == "sum":
            there.add_(value if value.ndim == 0 else value.sum(dtype=there.dtype), alpha=times)
        else:
            best = torch.maximum if self.kind == "max" else torch.minimum
            best(there, value if value.ndim == 0 else getattr(value, self.kind)(), out=there)

    def _begin_on(self, device: torch.device) -> torch.Tensor:
        wide = torch.float32 if device.type == "mps" else torch.float64  # Metal, the GPUs of macOS, has no float64
        self.on_device = torch.full((), 0.0 if self.kind == "sum" else self.host, dtype=wide, device=device)
        return self.on_device

    def item(self) -> float:
        """Returns the value as a number. item() waits for the device."""
        there = [] if self.on_device is None else [self.on_device.item()]
        return self.host + sum(there) if self.kind == "sum" else _extreme(self.kind, [self.host, *there])


class Mean:
    """A weighted mean of batch means, with the batch sizes as weights. If a tensor has several elements, the mean is
    over the elements."""

    kind = "mean"

    def __init__(self) -> None:
        self.total, self.weight = Total("sum"), Total("sum")

    def add(self, value: Value, weight: Value = 1.0) -> None:
        if isinstance(value, torch.Tensor) and value.ndim:
            self.total.add(value)
            self.weight.add(value.numel())
        elif isinstance(weight, torch.Tensor):  # a weight on the device, such as a count of tokens
            self.total.add(value * weight)
            self.weight.add(weight)
        else:
            self.total.add(value, weight)
            self.weight.host += weight


class Meters:
    """Meters by name. All methods except reduce() are local to the rank.

    group: None for one rank. The names may differ between ranks, but a name must have the same kind on all ranks.
    """

    per_rank = True  # each rank saves its own sums

    @checked
    def __init__(self, group: Group | None = None):
        self.group = group
        self._meters: dict[str, Mean | Total] = {}
        self._objects: dict[str, Any] = {}
        self._told: set[str] = set()  # names of metrics that _tell_partial() has reported
        self._graphs = GraphWatch()

    def mean(self, weight: Value = 1.0, /, **values: Value) -> None:
        """Adds values, each of which is a mean over `weight` samples (or tokens)."""
        for name, value in values.items():
            self._get(name, "mean").add(value, weight)  # type: ignore[arg-type]
            self._graphs.look(name, value)

    def sum(self, **values: Value) -> None:
        self._add("sum", values)

    def max(self, **values: Value) -> None:
        self._add("max", values)

    def min(self, **values: Value) -> None:
        self._add("min", values)

    def attach(self, name: str, metric: Any) -> None:
        """Attaches an object with update(), compute() and reset(), such as torchmetrics'. The caller calls update();
        reduce() calls compute() and reset(). compute() must reduce over ranks itself, as in torchmetrics; if the ranks'
        results differ, reduce() raises an error. To continue in the middle of an epoch, the object needs state_dict()
        and load_state_dict(); if they are missing, a warning is printed."""
        for part in _parts(metric):
            if callable(getattr(part, "persistent", None)):
                part.persistent(True)  # torchmetrics saves a metric's sums only after this call
        self._objects[name] = metric

    def reduce(self) -> dict[str, float]:
        """Returns the numbers over all ranks, on all ranks, and resets the meters. Collective. Waits for the GPU."""
        own = {name: _numbers(meter) for name, meter in self._meters.items()}
        computed: dict[str, Any] = {}
        for name, metric in self._objects.items():
            computed |= _computed(name, metric.compute())
            metric.reset()
        self._meters.clear()
        mine = {"meters": own, "objects": computed}
        ranks: list[dict[str, Any]] = self.group.gather(mine) if self.group is not None else [mine]
        everyone = [rank["meters"] for rank in ranks]
        kinds = {name: kind for rank in everyone for name, (kind, *_) in rank.items()}
        found = {name: _together(name, kind, everyone) for name, kind in kinds.items()}
        return found | _agreed([rank["objects"] for rank in ranks])

    def state_dict(self) -> dict[str, Any]:
        objects = {name: metric.state_dict() for name, metric in self._stateful()}
        self._tell_partial(self._objects.keys() - objects)
        return {"meters": {name: _numbers(meter) for name, meter in self._meters.items()}, "objects": objects}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._meters.clear()
        for name, (kind, *numbers) in state["meters"].items():
            meter = self._get(name, kind)
            parts = (meter.total, meter.weight) if isinstance(meter, Mean) else (meter,)
            for part, number in zip(parts, numbers, strict=True):
                part.host = number
        for name, metric in self._stateful():
            if name in state["objects"]:
                metric.load_state_dict(state["objects"][name])
                for part in _parts(metric):
                    if hasattr(part, "device"):  # the loaded sums of a torchmetrics metric are on the host
                        part.to(part.device)
        self._tell_partial(self._objects.keys() - state["objects"])

    def _stateful(self) -> list[tuple[str, Any]]:
        return [(name, metric) for name, metric in self._objects.items() if hasattr(metric, "load_state_dict")]

    def _tell_partial(self, names: Iterable[str]) -> None:
        """Warns, once, about metrics without saved state: after a resume in mid-epoch, their results cover only the
        rest of the epoch."""
        if self.group is not None and self.group.rendezvous.rank != 0:
            return
        for name in sorted(set(names) - self._told):
            say(
                f"clusterdp: metrics.{name}: the checkpoint has nothing of it, so in an epoch that is preempted its "
                "number is of the batches after that alone. With state_dict() and load_state_dict() it goes on."
            )
            self._told.add(name)

    def _add(self, kind: str, values: Mapping[str, Value]) -> None:
        for name, value in values.items():
            self._get(name, kind).add(value)
            self._graphs.look(name, value)

    def _get(self, name: str, kind: str) -> Mean | Total:
        meter = self._meters.get(name)
        if meter is None:
            meter = self._meters[name] = Mean() if kind == "mean" else Total(kind)
        elif meter.kind != kind:
            raise ConfigError(f"meters: {name!r} is a {meter.kind}, and now a {kind} of it is wanted. Use two names.")
        return meter


def _numbers(meter: Mean | Total) -> list[Any]:
    """Returns the meter's kind, and its values so far."""
    if isinstance(meter, Mean):
        return ["mean", meter.total.item(), meter.weight.item()]
    return [meter.kind, meter.item()]


def _together(name: str, kind: str, everyone: list[dict[str, list[Any]]]) -> float:
    """Returns the value over all ranks that have this meter. The values are added up in rank order, so that every rank
    gets the same bits."""
    rows = [rank[name] for rank in everyone if name in rank]
    if any(row[0] != kind for row in rows):
        raise ConfigError(f"meters: {name!r} is a {kind} on one rank and none on another. Use two names.")
    if kind == "mean":
        weight = sum(row[2] for row in rows)
        return sum(row[1] for row in rows) / weight if weight else math.nan
    return sum(row[1] for row in rows) if kind == "sum" else _extreme(kind, [row[1] for row in rows])


def _extreme(kind: str, values: list[float]) -> float:
    """Returns the maximum or minimum. If a value is NaN, the result is NaN, so that the NaN is not lost."""
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values) if kind == "max" else min(values)


def _computed(name: str, value: Any) -> dict[str, Any]:
    """Returns the numbers of compute() by name: one number, the named numbers of a collection, one number per class, or
    the rows of a matrix, such as a confusion matrix."""
    if isinstance(value, Mapping):
        parts = (_computed(f"{name}_{key}", part) for key, part in value.items())
        return {key: part for each in parts for key, part in each.items()}
    if isinstance(value, torch.Tensor) and value.ndim > 1:
        return {name: value.tolist()}
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return {f"{name}_{index}": part for index, part in enumerate(value.flatten().tolist())}
    return {name: float(value)}


def _parts(metric: Any) -> Iterable[Any]:
    """Returns a metric, and its inner metrics if the metric is a module, as in torchmetrics."""
    return metric.modules() if isinstance(metric, torch.nn.Module) else ()


def _agreed(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns rank 0's numbers on all ranks, because all ranks must agree on whether an epoch is the best."""
    for rank, other in enumerate(ranks):
        for name in {**ranks[0], **other}:
            ours, theirs = ranks[0].get(name), other.get(name)
            if not _same(ours, theirs):
                raise ConfigError(
                    f"metrics.{name}: compute() gave {ours} on rank 0 and {theirs} on rank {rank}: it is of one rank's "
                    "samples. torchmetrics' reduce over the ranks by themselves; let yours do so, too, or pass a "
                    "function of (outputs, targets)."
                )
    return ranks[0]


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return False  # the numbers are not comparable: only one rank has seen this class
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING**1.5) or (one != one and other != other)
