from __future__ import annotations

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.train.optim.lr_schedule import warmup_cosine


def test_warmup_cosine_rises_then_falls_to_its_floor() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(4, 12, floor=0.1))
    rates = []
    for _ in range(14):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[8] == pytest.approx(2 * (0.1 + 0.9 / 2))
    assert rates[4:13] == sorted(rates[4:13], reverse=True)
    assert rates[12:] == pytest.approx([0.2, 0.2])


def test_warmup_cosine_refuses_only_a_warm_up_longer_than_the_schedule() -> None:
    assert warmup_cosine(0, 2)(0) == 1.0
    assert [warmup_cosine(2, 2)(step) for step in range(3)] == [0.5, 1.0, 1.0]
    with pytest.raises(ConfigError, match="5 steps of warm-up in 4"):
        warmup_cosine(5, 4)
