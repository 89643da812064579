"""Metrics by name: one number per sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer
from clusterdp.train.trainer.metric_names import NAMES, by_name

LOGITS = torch.tensor([[3.0, 2, 1, 0, -1, -2], [0, 1, 2, 3, 4, 5], [1, 5, 2, 4, 3, 0]])


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "expected"),
    [
        ("accuracy", LOGITS, torch.tensor([0, 4, 1]), [1, 0, 1]),
        ("acc", LOGITS, torch.tensor([1, 5, 0]), [0, 1, 0]),
        ("top_5_accuracy", LOGITS, torch.tensor([5, 1, 0]), [0, 1, 1]),
        ("top_5_accuracy", LOGITS[:, :3], torch.tensor([2, 0, 1]), [1, 1, 1]),
        ("accuracy", torch.tensor([[0.5], [-1.0]]), torch.tensor([1, 1]), [1, 0]),
        ("accuracy", torch.tensor([0.5, -1.0]), torch.tensor([1.0, 0.0]), [1, 1]),
        ("accuracy", LOGITS.T[None, :, :], torch.tensor([[0, 5, 0]]), [2 / 3]),  # a class for each of three places
        ("accuracy", LOGITS[None, :, :], torch.tensor([[0, 5, 0]]), [2 / 3]),  # classes last, as a language model's
        ("accuracy", torch.tensor([0.5, -1.0]), torch.tensor([[1], [1]]), [1, 0]),
        ("mse", torch.tensor([[1.0, 3.0], [0.0, 0.0]]), torch.tensor([[1.0, 1.0], [1.0, 1.0]]), [2, 1]),
        ("mae", torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0]), [1, 2]),
    ],
)
def test_metric_by_name_gives_a_number_per_sample(name: str, outputs: Any, targets: Any, expected: Any) -> None:
    assert by_name(name)(outputs, targets).tolist() == pytest.approx(expected)


def test_accuracy_of_one_hot_targets_is_refused_with_both_shapes() -> None:
    with pytest.raises(ConfigError, match=r"accuracy is of outputs .*not of \(3, 6\) and \(3, 6\)"):
        by_name("accuracy")(LOGITS, torch.eye(6)[:3])


def test_trainer_takes_metrics_by_name(job: JobHandle) -> None:
    net = nn.Linear(6, 6)
    trainer = Trainer(net, nn.CrossEntropyLoss(), job=job, metrics=["accuracy", "top_5_accuracy"])
    found = trainer.evaluate((LOGITS, torch.tensor([0, 1, 2])))
    right = (net(LOGITS).argmax(1) == torch.tensor([0, 1, 2])).float().mean()
    assert found["accuracy"] == pytest.approx(float(right))
    assert {*found} == {"loss", "accuracy", "top_5_accuracy"}


def test_every_metric_name_is_a_column_name() -> None:
    assert all(name.isidentifier() for name in NAMES)
