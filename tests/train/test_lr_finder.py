"""LrFinder: the loss at a growing learning rate, as a call and in a profile."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.config.tree import ProfileConfig
from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer
from clusterdp.train.profile.lr_finder import FIRST, LAST, LrFinder
from clusterdp.train.profile.profiling import Profiled
from clusterdp.train.settings import WorkerSettings
from tests.checkpoint.training import digest

X = torch.randn(320, 8, generator=torch.Generator().manual_seed(0))
DATA = X, X.sum(1, keepdim=True)


def parts() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    net = nn.Linear(8, 1)
    groups = [{"params": [net.weight]}, {"params": [net.bias], "lr": 0.02}]
    return net, torch.optim.SGD(groups, lr=0.01)


def fed(losses: list[float]) -> LrFinder:
    finder = LrFinder([parts()[1]], len(losses))
    for loss in losses:
        finder.add({"loss": loss})
    return finder


def test_rates_grow_evenly_and_groups_keep_their_ratio() -> None:
    net, optimizer = parts()
    finder = LrFinder([optimizer], 9)
    seen = []
    for _ in range(9):
        net(X).mean().backward()
        optimizer.step()
        seen.append([group["lr"] for group in optimizer.param_groups])
        finder.add({"loss": torch.tensor(1.0)})
    assert math.isclose(seen[0][0], FIRST)
    assert math.isclose(seen[8][0], LAST)
    assert math.isclose(seen[4][0], 1e-3)
    assert all(math.isclose(bias, 2 * weight) for weight, bias in seen)
    finder.close()
    net(X).mean().backward()
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_best_rate_lies_in_the_steepest_fall_of_the_loss() -> None:
    finder = fed([*[1.0] * 40, *[1.0 - 0.05 * n for n in range(1, 16)], *[0.3] * 10, 3.0, 9.0, 40.0, math.nan])
    rates = [rate for rate, _ in finder.rows]
    assert finder.best is not None
    assert rates[45] < finder.best <= rates[56]
    assert finder.lines()[-1].startswith(f"Try lr: {finder.best:.1e}, where the loss falls fastest, and rises after")


@pytest.mark.parametrize("above", [0.0, -2.0, -9.0])
def test_best_rate_depends_on_no_offset_of_the_loss(above: float) -> None:
    losses = [*[1.0] * 40, *[1.0 - 0.05 * n for n in range(1, 16)], *[0.25] * 10]
    best = fed([loss + above for loss in losses]).best
    assert best is not None
    assert math.isclose(best, fed(losses).best or 0.0)


def test_losses_of_every_tenth_step_are_enough() -> None:
    finder = LrFinder([parts()[1]], 200)
    for step in range(200):
        finder.add({"loss": 1.0 / (1 + step)} if step % 10 == 0 else {})
    assert finder.best is not None


def test_find_lr_goes_on_after_an_infinite_loss(job: JobHandle) -> None:
    net, optimizer = parts()
    guarded = replace(job._settings, train=replace(job._settings.train, on_nan="stop"))
    handle = JobHandle(guarded, job.group, job.stop_signal, "1.0")
    wrong: list[int] = []
    trainer = Trainer(net, lambda a, b: (a - b).square().mean() / (optimizer.param_groups[0]["lr"] < 0.1), optimizer,
                      job=handle, on_step=[lambda trainer, values: wrong.append(1)])  # fmt: skip
    guard = trainer.nan_guard
    assert trainer.find_lr(DATA).best is not None
    assert (trainer.nan_guard, trainer.step_options["nan_guard"], wrong) == (guard, guard, [])
    assert guard is not None


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([1.0, 1.1, 1.2, 1.3, 1.4], "The loss does not fall at any rate. Look at the data and the loss."),
        ([math.nan] * 5, "No step has logged a loss. Write loop.log(loss=loss)."),
    ],
)
def test_losses_without_a_fall_give_no_rate(losses: list[float], said: str) -> None:
    finder = fed(losses)
    assert (finder.best, finder.lines()[-1]) == (None, said)


def test_find_lr_restores_all_state_and_names_a_plausible_rate(job: JobHandle) -> None:
    net, optimizer = parts()
    trainer = Trainer(net, nn.MSELoss(), optimizer, job=job)
    before = digest([net.state_dict(), optimizer.state_dict(), torch.get_rng_state()])
    found = trainer.find_lr(DATA)
    assert digest([net.state_dict(), optimizer.state_dict(), torch.get_rng_state()]) == before
    assert len(found.rows) == 100
    assert found.best is not None
    assert 1e-3 < found.best < 1.0
    assert (trainer.loop, len(trainer.history), trainer.callbacks.on_step) == (None, 0, [])


def test_find_batch_size_restores_all_state_and_gives_advice(job: JobHandle) -> None:
    net, optimizer = parts()
    trainer = Trainer(net, nn.MSELoss(), optimizer, job=job)
    before = digest([net.state_dict(), optimizer.state_dict(), torch.get_rng_state()])
    table = trainer.find_batch_size(DATA, first=100)
    assert digest([net.state_dict(), optimizer.state_dict(), torch.get_rng_state()]) == before
    assert [row.size for row in table.rows][:2] == [100, 200]
    assert "Try batch_size: " in str(table)
    short = trainer.find_batch_size(DATA, first=100, drop_last=True)
    assert [row.size for row in short.rows] == [100, 200]


def test_profile_with_find_lr_ends_after_its_steps_with_the_table(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    short = JobHandle(WorkerSettings(profile=ProfileConfig(steps=40, find="lr")), job.group, job.stop_signal, "1.0")
    net, optimizer = parts()
    loop: Any = short.loop(short.loader(DATA, 32), {"net": net, "optimizer": optimizer}, epochs=100)

    def train() -> None:
        for x, y in loop:
            loss = nn.functional.mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loop.log(loss=loss)

    with pytest.raises(Profiled):
        train()
    assert loop.step == 40
    assert "Try lr: " in capsys.readouterr().out


def test_profile_with_find_lr_refuses_a_state_without_an_optimizer(job: JobHandle) -> None:
    short = JobHandle(WorkerSettings(profile=ProfileConfig(steps=4, find="lr")), job.group, job.stop_signal, "1.0")
    with pytest.raises(ConfigError, match="find lr: the loop's state has no optimizer"):
        next(iter(short.loop(short.loader(DATA, 32), {}, epochs=1)))
