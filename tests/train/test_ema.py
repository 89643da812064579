"""The average of the weights: in fp32 whatever they are, put into the model for an evaluation and taken out again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from clusterdp.checkpoint import Checkpointer, list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError
from clusterdp.train import Amp, JobHandle, Stopped, StopSignal
from clusterdp.train.optim.ema import Ema
from clusterdp.train.settings import WorkerSettings
from tests.checkpoint.training import digest


def test_ema_equals_averaged_model_of_torch() -> None:
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


def test_ema_applied_uses_averages_inside_and_restores_weights_afterwards() -> None:
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


def test_ema_applied_restores_weights_after_an_exception() -> None:
    model = nn.Linear(1, 1, bias=False)
    ema, before = Ema(model, 0.5), model.weight.item()
    ema.state_dict()["weight"].fill_(4.0)
    with pytest.raises(ZeroDivisionError), ema.applied():
        model(torch.ones(1, 1) * (1 / 0))
    assert model.weight.item() == before


def test_ema_of_fp16_weights_is_kept_in_fp32() -> None:
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


def test_ema_state_dict_has_parameter_names_of_the_unwrapped_module() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)
            self.frozen = nn.Linear(1, 1).requires_grad_(False)

    ema, other = Ema(nn.DataParallel(Outer())), Ema(Outer())
    assert [*ema.state_dict()] == ["module.weight", "module.bias"]
    other.load_state_dict(ema.state_dict())
    assert other.state_dict() == ema.state_dict()


def test_ema_decay_above_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ema: decay: 1\.5"):
        Ema(nn.Linear(1, 1), 1.5)


class Twice(nn.Module):
    """One weight under two names, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        self.b.weight = self.a.weight
        self.b.bias.requires_grad_(False)


def test_save_during_ema_applied_stores_averages_only_without_ema_in_the_state(tmp_path: Path) -> None:
    model = Twice()
    ema = Ema(model, 0.5)
    before = {name: tensor.item() for name, tensor in model.state_dict().items()}
    ema.state_dict()["a.weight"].fill_(4.0)
    inner = {"model": model.a, "ema": ema}  # as a part of it has its own name in the state
    with ema.applied():
        Checkpointer(tmp_path / "run", {"model": model, "ema": ema}).save(1)
        Checkpointer(tmp_path / "part", inner).save(1)
        Checkpointer(tmp_path / "best", {"model": model}).save(1)
        assert model.state_dict()["a.weight"].item() == 4.0, "for who exports them"
    for folder, state in (("run", {"model": model, "ema": ema}), ("part", inner)):
        with torch.no_grad():
            model.a.weight.fill_(9.0)
        Checkpointer(tmp_path / folder, state).restore()
        assert {name: tensor.item() for name, tensor in model.state_dict().items()} == before
        assert ema.state_dict()["a.weight"].item() == 4.0
    Checkpointer(tmp_path / "best", {"model": model}).restore()
    assert model.a.weight.item() == 4.0


def attempt(job: JobHandle, folder: Path, evaluated: Callable[[int, int], None] = lambda step, item: None) -> list[Any]:
    """Ten steps, a save after every third, and an evaluation of the averages after each that is odd.

    evaluated: called there, after the step and of its item. Returns the state at the end, or none if it has stopped.
    """
    (folder / "attempts" / "1.0").mkdir(parents=True, exist_ok=True)
    saving = CheckpointConfig(url=str(folder / "checkpoints"), async_save=False)
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ema = Ema(model, 0.9)
    with StopSignal() as stop:
        job = JobHandle(WorkerSettings(run_dir=folder, checkpoint=saving), job.group, stop, "1.0")
        state = {"model": model, "optimizer": optimizer, "ema": ema}
        loop = job.loop([torch.full((2, 4), i / 10) for i in range(10)], state, every_steps=3)
        try:
            for x in loop:
                optimizer.zero_grad()
                (model(x) - 1).square().mean().backward()
                optimizer.step()
                ema.update()
                if (step := loop.step + 1) % 2:
                    with ema.applied():
                        for item in loop.watch(range(9)):
                            evaluated(step, item)
        except Stopped:
            return []
    return [model.state_dict(), ema.state_dict(), optimizer.state_dict()]


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_run_stopped_or_killed_during_ema_applied_resumes_like_the_uninterrupted_one(
    job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Stopped, it saves in there; killed, it goes on from the save that was due in there."""
    monkeypatch.setattr("clusterdp.train.ranks.shared_flags.MOST_STEPS", 1)

    def strike(step: int, item: int) -> None:
        if (step, item) == (3, 2):
            if how == "killed":
                raise ChildProcessError
            os.kill(os.getpid(), signal.SIGTERM)

    whole = attempt(job, tmp_path / "whole")
    with suppress(ChildProcessError):
        assert attempt(job, tmp_path / "run", strike) == []
    assert [info.step for info in list_checkpoints(str(tmp_path / "run" / "checkpoints"))] == [3]
    assert digest(attempt(job, tmp_path / "run")) == digest(whole)
