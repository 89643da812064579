"""The average of the weights: in fp32 whatever they are, put into the model for an evaluation and taken out again."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from clusterdp.errors import ConfigError
from clusterdp.train import Amp
from clusterdp.train.ema import Ema


def test_it_is_the_average_that_torch_keeps_of_fp32_weights() -> None:
    model = nn.Linear(3, 2)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)  # its first call only copies
    ours = Ema(model, 0.9)
    for _ in range(4):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3))
        ours.update()
        theirs.update_parameters(model)
    assert torch.equal(ours.state_dict()["weight"], theirs.module.weight)


def test_the_model_has_the_averages_for_as_long_as_it_is_evaluated() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    ema = Ema(model, 0.5)
    with torch.no_grad():
        model.weight.fill_(8.0)
    ema.update()
    evaluation = ema.applied()
    with evaluation:
        assert model.weight.item() == 4.0
    assert model.weight.item() == 8.0


def test_an_evaluation_that_fails_leaves_the_model_as_it_was() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema, before = Ema(model, 0.5), model.weight.item()
    ema.state_dict()["weight"].fill_(4.0)
    with pytest.raises(ZeroDivisionError), ema.applied():
        model(torch.ones(1, 1) * (1 / 0))
    assert model.weight.item() == before


def test_it_averages_what_fp16_cannot_hold() -> None:
    """A 0.999th of the way to the next fp16 number is no way at all, unless it is counted in fp32."""
    amp = Amp("O2", "cpu")
    model = amp.cast(nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.adopt(optimizer)
    ema = Ema(model, 0.999, amp=amp)
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].fill_(1.1)  # the master
    ema.update()
    average = ema.state_dict()["weight"]
    assert average.dtype == torch.float32
    assert average.item() == pytest.approx(1.0001)


def test_it_goes_by_the_names_of_the_users_own_module() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)
            self.frozen = nn.Linear(1, 1).requires_grad_(False)

    ema, other = Ema(nn.DataParallel(Outer())), Ema(Outer())
    assert [*ema.state_dict()] == ["module.weight", "module.bias"]
    other.load_state_dict(ema.state_dict())
    assert other.state_dict() == ema.state_dict()


def test_a_decay_beyond_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ema: decay: 1\.5"):
        Ema(nn.Linear(1, 1), 1.5)
