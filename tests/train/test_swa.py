"""Swa: the mean of the weights after epochs, as a callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train import Ema, JobHandle, Swa, Trainer
from tests.checkpoint.training import digest
from tests.train import programs
from tests.train.ranks import running

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


def sharded(job: JobHandle) -> list[float]:
    """The mean of FSDP2's shards, and the model's weights after finish()."""
    net = normed()
    swa = Swa(net, first_epoch=1)
    trainer = Trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=0.05), job=job, callbacks=[swa])
    seen: list[torch.Tensor] = []
    trainer.callbacks.on_epoch.append(lambda trainer, row: seen.append(net[0].weight.full_tensor().detach().clone()))
    trainer.fit(DATA, epochs=3, batch_size=8)
    swa.finish(job.loader(DATA, 32))
    mean, own = torch.stack(seen).mean(0), net[0].weight.full_tensor()
    return [float((mean - own).abs().max()), float((seen[-1] - own).abs().max())]


def test_swa_made_before_its_trainer_averages_the_shards_of_fsdp(tmp_path: Path) -> None:
    args = (programs.with_job, "tests.train.test_swa:sharded", {}, {"strategy": "fsdp"})
    with running(tmp_path, *args, size=2) as ranks:
        for of_mean, of_last in ranks.answers:
            assert of_mean < 1e-6 < of_last


def test_ema_made_before_its_trainer_averages_the_masters_of_o2(job: JobHandle) -> None:
    net = normed()
    ema = Ema(net, 0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    trainer = Trainer(net, nn.MSELoss(), optimizer, job=job, amp="O2", state={"ema": ema})
    assert trainer.amp.masters is not None
    assert ema._sources[0] is trainer.amp.full(net[0].weight)


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
