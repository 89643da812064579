"""Mixed precision: a scale that is lost at a resume, or an overflow that is not skipped, changes the training."""

from __future__ import annotations

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.train import Amp


def model_and_optimizer() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_autocast_runs_forward_in_the_configured_precision(precision: str, dtype: torch.dtype) -> None:
    model, _ = model_and_optimizer()
    with Amp(precision, "cpu").autocast():
        assert model(torch.ones(2, 4)).dtype == dtype


def test_amp_fp16_training_equals_torch_autocast_with_grad_scaler() -> None:
    ours, our_optimizer = model_and_optimizer()
    theirs, their_optimizer = model_and_optimizer()
    amp, scaler = Amp("fp16", "cpu"), torch.amp.GradScaler("cpu")
    for x in torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(1)):
        our_optimizer.zero_grad()
        with amp.autocast():
            loss = ours(x).square().mean()
        amp.backward(loss)
        norm = amp.step(our_optimizer, clip_norm=0.1)

        their_optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = theirs(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(their_optimizer)
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        scaler.step(their_optimizer)
        scaler.update()
        assert norm is not None
        assert torch.equal(norm, expected)
    assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize(("level", "dtype"), [("O0", None), ("bf16", torch.bfloat16)])
def test_amp_without_loss_scaling_equals_plain_torch_training(level: str, dtype: torch.dtype | None) -> None:
    ours, our_optimizer = model_and_optimizer()
    theirs, their_optimizer = model_and_optimizer()
    amp = Amp(level, "cpu")
    for x in torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(1)):
        with amp.autocast():
            loss = ours(x).square().mean()
        amp.backward(loss)
        amp.step(our_optimizer)
        our_optimizer.zero_grad()

        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = theirs(x).square().mean()
        loss.backward()
        their_optimizer.step()
        their_optimizer.zero_grad()
    assert not torch.equal(ours.weight, model_and_optimizer()[0].weight)
    assert torch.equal(ours.weight, theirs.weight)


def test_overflow_skips_the_step_and_halves_the_loss_scale() -> None:
    model, optimizer = model_and_optimizer()
    before = model.weight.clone()
    amp = Amp("fp16", "cpu", init_scale=1024.0)
    amp.backward(model(torch.full((1, 4), float("inf"))).sum())
    amp.step(optimizer)
    assert torch.equal(model.weight, before)
    assert amp.skipped
    assert amp.scale == 512.0
    model.zero_grad()
    amp.backward(model(torch.ones(1, 4)).sum())
    amp.step(optimizer)
    assert not amp.skipped


def test_amp_resume_restores_loss_scale_and_growth_tracker() -> None:
    model, optimizer = model_and_optimizer()
    amp = Amp("fp16", "cpu", init_scale=8.0, growth_interval=3)
    for _ in range(5):
        amp.backward(model(torch.ones(1, 4)).sum())
        amp.step(optimizer)
    resumed = Amp("fp16", "cpu", init_scale=8.0, growth_interval=3)
    resumed.load_state_dict(amp.state_dict())
    assert resumed.scale == 16.0
    assert resumed.state_dict() == amp.state_dict()
    resumed.backward(model(torch.ones(1, 4)).sum())
    resumed.step(optimizer)
    assert resumed.scale == 32.0  # the third stable step: two of them were before


def test_amp_resume_accepts_a_changed_precision() -> None:
    scaled, plain = Amp("fp16", "cpu", init_scale=8.0), Amp("bf16", "cpu")
    plain.load_state_dict(scaled.state_dict())
    scaled.load_state_dict(plain.state_dict())
    assert scaled.scale == 8.0


def test_amp_loads_a_state_saved_by_apex() -> None:
    amp = Amp("O1", "cpu", growth_interval=7)
    amp.load_state_dict({"loss_scaler0": {"loss_scale": 1024.0, "unskipped": 5}})
    assert amp.scale == 1024.0
    assert amp.state_dict()["_growth_tracker"] == 5
    assert amp.state_dict()["growth_interval"] == 7
    Amp("O0", "cpu").load_state_dict({"loss_scaler0": {"loss_scale": 1.0, "unskipped": 0}})


def test_unknown_amp_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fp8' is not a level"):
        Amp("fp8", "cpu")
