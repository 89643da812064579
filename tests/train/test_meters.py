"""Meters: over any number of ranks, with batches as uneven as they come, the numbers are those of one process."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.train import Meters
from tests.train import programs
from tests.train.ranks import running

SAMPLES = [0.1 * (7 * i % 23) - 1 for i in range(23)]


def one_process() -> dict[str, float]:
    found = {"mean": math.fsum(SAMPLES) / 23, "sum": math.fsum(SAMPLES), "max": max(SAMPLES), "min": min(SAMPLES)}
    return {**found, "plain": 11.0}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_meters_reduced_over_uneven_ranks_equal_one_process(tmp_path: Path, size: int) -> None:
    # Batches of 5; the samples are dealt out so that one rank of four has no batch at all.
    shares = {1: [SAMPLES], 2: [SAMPLES[:16], SAMPLES[16:]], 4: [SAMPLES[:3], SAMPLES[3:20], [], SAMPLES[20:]]}[size]
    with running(tmp_path / "ranks", programs.meters_over, shares, size=size) as ranks:
        answers = ranks.answers
    assert all(answer == answers[0] for answer in answers)  # to the last bit, on every rank
    assert answers[0] == pytest.approx(one_process(), rel=1e-12)


def test_mean_meter_is_weighted_by_tensor_elements_or_the_given_count() -> None:
    meters = Meters()
    meters.mean(accuracy=torch.tensor([True, False, True, True]).float())
    meters.mean(accuracy=torch.tensor([False, False]).float())
    meters.mean(torch.tensor(3), tokens=torch.tensor(1.0))
    meters.mean(torch.tensor(1), tokens=torch.tensor(5.0))
    assert meters.reduce() == {"accuracy": 0.5, "tokens": 2.0}
    assert meters.reduce() == {}


def test_meters_accept_integers_bfloat16_and_nan() -> None:
    meters = Meters()
    meters.sum(right=torch.tensor(3), seen=4)
    meters.sum(right=torch.tensor(True), seen=2.5)
    meters.mean(2, loss=torch.tensor(0.5, dtype=torch.bfloat16))
    meters.max(norm=torch.tensor(float("nan")))
    meters.max(norm=torch.tensor(2.0))
    found = meters.reduce()
    assert (found["right"], found["seen"], found["loss"]) == (4, 6.5, 0.5)
    assert math.isnan(found["norm"])


def test_mean_meter_adds_up_in_double_precision() -> None:
    meters = Meters()
    for _ in range(1000):
        meters.mean(loss=torch.tensor(0.1))
    assert meters.reduce()["loss"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-13)


def test_meters_restored_in_mid_epoch_equal_uninterrupted_ones() -> None:
    values = torch.rand(20, generator=torch.Generator().manual_seed(0))

    def fill(meters: Meters, part: torch.Tensor) -> Meters:
        for value in part:
            meters.mean(3, loss=value)
            meters.max(top=value)
        return meters

    first = fill(Meters(), values[:7])
    second = Meters()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert fill(second, values[7:]).reduce() == fill(Meters(), values).reduce()


def test_meters_do_not_keep_the_autograd_graph() -> None:
    meters = Meters()
    weight = torch.ones(3, requires_grad=True)
    meters.mean(loss=(weight * 2).sum())
    meters.max(loss2=(weight * 2).sum())
    assert not any(t.on_device.requires_grad for t in (meters._meters["loss"].total, meters._meters["loss2"]))  # type: ignore[union-attr]


def test_meter_name_used_for_a_mean_and_a_sum_is_refused() -> None:
    meters = Meters()
    meters.mean(loss=1.0)
    with pytest.raises(ConfigError, match="'loss' is a mean, and now a sum"):
        meters.sum(loss=1.0)


class Accuracy:
    """What torchmetrics' have, as far as we use it."""

    def __init__(self) -> None:
        self.reset()

    def update(self, right: int, seen: int) -> None:
        self.right, self.seen = self.right + right, self.seen + seen

    def compute(self) -> torch.Tensor:
        return torch.tensor(self.right / self.seen)

    def reset(self) -> None:
        self.right = self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        return {"right": self.right, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.right, self.seen = state["right"], state["seen"]


def test_attached_metric_object_is_saved_and_restored() -> None:
    meters, metric = Meters(), Accuracy()
    meters.attach("accuracy", metric)
    metric.update(3, 4)
    other, another = Meters(), Accuracy()
    other.attach("accuracy", another)
    other.load_state_dict(meters.state_dict())
    another.update(0, 2)
    assert other.reduce() == {"accuracy": 0.5}
    assert another.seen == 0


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([0.5, 0.5], {"f1": 0.5}),
        ([0.5, 0.5 * (1 + 1e-7)], {"f1": 0.5}),  # added up in another order; a GPU's choice
        ([{"a": 1.0, "b": math.inf}] * 2, {"f1_a": 1.0, "f1_b": math.inf}),
        ([[[3.0, 1.0], [0.0, 4.0]]] * 2, {"f1": [[3.0, 1.0], [0.0, 4.0]]}),
        ([[[3.0, 1.0]], [[3.0, 2.0]]], "metrics.f1: compute() gave [[3.0, 1.0]] on rank 0 and [[3.0, 2.0]] on rank 1"),
        ([0.5, 0.75], "metrics.f1: compute() gave 0.5 on rank 0 and 0.75 on rank 1"),
        ([0.5, math.nan], "metrics.f1: compute() gave 0.5 on rank 0 and nan on rank 1"),
        ([{"a": 1.0}, {"a": 1.0, "b": 0.5}], "metrics.f1_b: compute() gave None on rank 0 and 0.5 on rank 1"),
    ],
)
def test_metric_object_gives_all_ranks_the_same_result_or_error(tmp_path: Path, values: Any, found: Any) -> None:
    with running(tmp_path / "ranks", programs.objects_over, values, size=2) as ranks:
        answers = ranks.answers
    assert answers[0] == answers[1]
    assert answers[0].startswith(found) if isinstance(found, str) else answers[0] == found


def test_metric_object_returning_nan_on_all_ranks_is_accepted(tmp_path: Path) -> None:
    with running(tmp_path / "ranks", programs.objects_over, [math.nan, math.nan], size=2) as ranks:
        assert all(math.isnan(answer["f1"]) for answer in ranks.answers)


class Sums(torch.nn.Module):
    """As torchmetrics' have them: no buffers, not saved unless asked, and taken from a checkpoint as they come."""

    def __init__(self, within: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.within, self.saved, self.device = within, False, torch.device("meta")
        self.total = torch.zeros(2, device=self.device)

    def persistent(self, mode: bool) -> None:
        self.saved = mode

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.saved:
            destination[prefix + "total"] = self.total

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        self.total = state_dict.pop(prefix + "total")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.total = fn(self.total)
        return super()._apply(fn, recurse)


def test_nested_metric_state_is_restored_onto_its_device() -> None:
    """torchmetrics' MinMaxMetric(Accuracy()), which is a module in a module."""
    meters, metric = Meters(), Sums(Sums())
    meters.attach("least", metric)
    state = meters.state_dict()
    assert state["objects"]["least"].keys() == {"total", "within.total"}
    state["objects"]["least"] = {name: torch.ones(2) for name in state["objects"]["least"]}  # read on the host
    meters.load_state_dict(state)
    assert [part.total.device.type for part in metric.modules()] == ["meta", "meta"]  # type: ignore[union-attr]


def test_metric_object_without_checkpoint_state_causes_one_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Bare:
        compute = reset = lambda self: None

    meters = Meters()
    meters.attach("bare", Bare())
    state = meters.state_dict()
    meters.state_dict()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(
        "clusterdp: metrics.bare: the checkpoint has nothing of it, so in an epoch that is preempted"
    )
    meters.attach("accuracy", Accuracy())
    meters.load_state_dict(state)  # "bare" has been told
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("clusterdp: metrics.accuracy: ")
