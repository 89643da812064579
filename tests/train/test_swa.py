"""Swa: the mean of the weights after epochs, as a callback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Swa, Trainer
from tests.checkpoint.training import digest

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
DATA = X, X.sum(1, keepdim=True)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_swa_callback_averages_the_weights_after_each_epoch_from_the_first(job: JobHandle) -> None:
    net = normed()
    swa, seen = Swa(net, first_epoch=2), []

    def note(trainer: Trainer, row: Any) -> None:
        seen.append([p.detach().clone() for p in net.parameters()])

    trainer = Trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.05), job=job, callbacks=[swa, note])
    trainer.fit(DATA, epochs=4, batch_size=16)
    means = [torch.stack(each).mean(0) for each in zip(*seen[1:], strict=True)]
    assert swa.count == 3
    with swa.applied():
        assert all(map(torch.allclose, net.parameters(), means))
    assert all(map(torch.equal, net.parameters(), seen[-1]))
    swa.finish(job.loader(DATA, 64))
    assert all(map(torch.allclose, net.parameters(), means))
    assert torch.allclose(net[1].running_mean, net[0](X).mean(0), atol=1e-6)


def test_swa_state_continues_the_mean() -> None:
    nets = normed(), normed()
    ours, theirs = Swa(nets[0]), Swa(nets[1])
    ours.update()
    theirs.load_state_dict(ours.state_dict())
    with torch.no_grad():
        for net in nets:
            net[0].weight.add_(1.0)
    ours.update()
    theirs.update()
    assert digest(ours.state_dict()) == digest(theirs.state_dict())
    assert torch.allclose(ours.state_dict()["averages"]["0.weight"], nets[0][0].weight - 0.5)


def test_swa_without_an_averaged_epoch_refuses_to_finish() -> None:
    net = normed()
    before = digest(net.state_dict())
    with pytest.raises(ConfigError, match="swa: no epoch was averaged; the first is 3"):
        Swa(net, first_epoch=3).finish([X])
    assert digest(net.state_dict()) == before
    with pytest.raises(ConfigError, match="swa: first_epoch: 0 is less than 1"):
        Swa(net, first_epoch=0)
