"""Gradient checkpointing: the same bits, dropout too, and fewer activations kept."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train.parallel.activation_checkpointing import recompute


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.dropout(self.inner(x).relu(), 0.5)


def gradients(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    model(torch.ones(3, 4)).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_recompute_leaves_gradients_and_parameter_names_unchanged() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Block(), Block())
    changed = recompute(copy.deepcopy(plain), "Block")
    assert torch.equal(gradients(plain), gradients(changed))
    assert [*changed.state_dict()] == [*plain.state_dict()]
    assert [block.calls for block in changed] == [2, 2]  # type: ignore[union-attr, attr-defined]
    assert [block.calls for block in plain] == [1, 1]


def test_deepcopy_of_a_recomputed_model_uses_its_own_weights() -> None:
    model = recompute(nn.Sequential(Block()), "Block")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert twin(torch.ones(1, 4)).abs().sum() == 0
    assert model[0].calls == 0  # type: ignore[index]


def test_recompute_of_an_unknown_module_class_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"train\.recompute: the model has no Blok"):
        recompute(nn.Sequential(Block()), "Block", "Blok")


def test_recompute_refuses_a_module_with_batchnorm() -> None:
    with pytest.raises(ConfigError, match="Sequential has a BatchNorm in it"):
        recompute(nn.Sequential(nn.Sequential(nn.BatchNorm1d(3))), "Sequential")
