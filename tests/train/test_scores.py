"""Scores: what a metric is handed, and what it may give back; an epoch's number is of that epoch's batches alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle
from clusterdp.train.trainer.scores import Scores

BATCH = torch.arange(6.0).reshape(3, 2)
LOSS = torch.tensor(0.5)


class Keeps:
    """Everything it gets, as torchmetrics' curves do."""

    def __init__(self, net: nn.Module):
        self.net, self.seen = net, []

    def update(self, outputs: Any, targets: Any) -> None:
        self.seen += [*outputs["all"], outputs["first"], self.net(outputs["first"])]

    def compute(self) -> int:
        return len(self.seen)

    def reset(self) -> None:
        self.seen = []


def both(outputs: torch.Tensor) -> Any:
    return {"all": [outputs, outputs * 2], "first": outputs}


def test_metric_object_gets_outputs_without_an_autograd_graph(job: JobHandle) -> None:
    """Else each batch of an epoch stays in memory with all its activations."""
    net = nn.Linear(2, 2)
    scores = Scores({"kept": Keeps(net)}, job.group)
    scores.add(BATCH, LOSS, both(net(BATCH)), None)
    (kept,) = scores._objects
    assert len(kept.seen) == 4
    assert not any(tensor.requires_grad for tensor in kept.seen)


def test_training_and_evaluation_use_separate_metric_objects(job: JobHandle) -> None:
    net = nn.Identity()
    mine = Keeps(net)
    training, evaluation = Scores({"kept": mine}, job.group), Scores({"kept": mine}, job.group)
    training.add(BATCH, LOSS, both(BATCH), None)
    training.add(BATCH, LOSS, both(BATCH), None)
    evaluation.add(BATCH, LOSS, both(BATCH), None)
    assert evaluation.meters.reduce() == {"loss": 0.5, "kept": 4.0}
    assert training.meters.reduce() == {"loss": 0.5, "kept": 8.0}
    assert mine.seen == []


@pytest.mark.parametrize("value", [0.25, torch.tensor(0.25), torch.tensor([0.0, 0.5, 0.25]), True])
def test_metric_may_return_a_number_or_one_number_per_sample(job: JobHandle, value: Any) -> None:
    scores = Scores({"right": lambda outputs, targets: value}, job.group)
    scores.add(BATCH, LOSS, BATCH, None)
    assert scores.meters.reduce()["right"] == (0.25 if value is not True else 1.0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(3, 2), r"a tensor of shape \(3, 2\) for a batch of 3"),
        (torch.zeros(2), r"a tensor of shape \(2,\) for a batch of 3"),
        (torch.zeros(1, 1), r"a tensor of shape \(1, 1\) for a batch of 3"),
        ([0.25], "a list"),
        (None, "a NoneType"),
    ],
)
def test_metric_returning_a_wrong_shape_or_type_is_refused(job: JobHandle, value: Any, said: str) -> None:
    """A mean over it would be one over something else than samples."""
    scores = Scores({"odd": lambda outputs, targets: value}, job.group)
    with pytest.raises(ConfigError, match=rf"metrics\.odd: returned {said}. Return a number, or one number a sample\."):
        scores.add(BATCH, LOSS, BATCH, None)
