"""Levels O2 and O3, as Apex defines them: which weights are fp16, what the optimizer steps on, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer
from clusterdp.errors import ConfigError, StateError
from clusterdp.train import Amp, JobHandle, Trainer
from tests.checkpoint.training import digest
from tests.train import techniques
from tests.train.ranks import running

HALF, FULL = torch.float16, torch.float32


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def made(level: str, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Amp]:
    amp = Amp(level, "cpu", **options)
    model = amp.cast(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    amp.adopt(optimizer)
    return model, optimizer, amp


def train(model: nn.Module, optimizer: torch.optim.Optimizer, amp: Amp, steps: int, **clip: float) -> None:
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.autocast():
            loss = model(torch.randn(6, 4, generator=draw)).float().square().mean()
        amp.backward(loss)
        amp.step(optimizer, **clip)


# opt_level: type of the weights, of BatchNorm's, of what the optimizer steps on, of activations, and the loss scale
PROPERTIES = {
    "O0": (FULL, FULL, FULL, FULL, 1.0),
    "O1": (FULL, FULL, FULL, HALF, 65536.0),
    "O2": (HALF, FULL, FULL, HALF, 65536.0),
    "O3": (HALF, HALF, HALF, HALF, 1.0),
    "bf16": (FULL, FULL, FULL, torch.bfloat16, 1.0),
}


@pytest.mark.parametrize("level", PROPERTIES)
def test_each_amp_level_sets_its_dtypes_and_initial_loss_scale(level: str) -> None:
    model, optimizer, amp = made(level)
    weights, norms, steps_on, activations, scale = PROPERTIES[level]
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))  # type: ignore[index]
    with amp.autocast():
        model(torch.randn(3, 4))
    assert seen == [activations]
    assert {p.dtype for p in model[0].parameters()} == {weights}  # type: ignore[index]
    assert {t.dtype for t in model[1].state_dict().values() if t.is_floating_point()} == {norms}  # type: ignore[index]
    assert {p.dtype for group in optimizer.param_groups for p in group["params"]} == {steps_on}
    assert amp.scale == scale


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_fp16_model_takes_and_returns_fp32_tensors_and_leaves_integers_unchanged(level: str) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, *, others: dict[str, Any]) -> Any:
            assert others["same"].dtype == torch.int64
            return {"y": self.inner(x) + others["more"][0]}, [others["same"]]

    model = Amp(level, "cpu").cast(Named())
    out, (same,) = model(torch.ones(1, 2), others={"more": (torch.ones(1, 2),), "same": torch.ones(1).long()})
    assert (out["y"].dtype, same.dtype) == (FULL, torch.int64)


def test_o2_training_equals_handwritten_training_with_master_weights() -> None:
    model, optimizer, amp = made("O2", init_scale=8.0)
    hand = net()
    for part in (hand[0], hand[3]):
        part.half()
    masters = [p.detach().float().requires_grad_() for p in hand.parameters()]
    by_hand = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    train(model, optimizer, amp, 5, clip_norm=0.5)
    draw = torch.Generator().manual_seed(1)
    for _ in range(5):
        hand.zero_grad()
        loss = hand(torch.randn(6, 4, generator=draw).half()).float().square().mean()
        (loss * 8).backward()
        for p, master in zip(hand.parameters(), masters, strict=True):
            assert p.grad is not None
            master.grad = p.grad.float() * (1 / 8)
        nn.utils.clip_grad_norm_(masters, 0.5)
        by_hand.step()
        with torch.no_grad():
            for p, master in zip(hand.parameters(), masters, strict=True):
                p.copy_(master)
    for ours, theirs in zip(model.parameters(), hand.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_updates_too_small_for_fp16_accumulate_in_the_master_weights() -> None:
    moved = {}
    for level in ("O2", "O3"):
        amp = Amp(level, "cpu", loss_scale=1.0)
        model = amp.cast(nn.Linear(1, 1, bias=False))
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        amp.adopt(optimizer)
        for _ in range(50):
            optimizer.zero_grad()
            amp.backward(model(torch.ones(1, 1)).sum())
            amp.step(optimizer)
        moved[level] = 1.0 - model.weight.item()
    assert moved["O3"] == 0.0
    assert moved["O2"] == pytest.approx(50e-4, rel=0.1)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_overflow_skips_the_step_but_keeps_a_static_loss_scale(level: str) -> None:
    model, optimizer, amp = made(level, loss_scale=128.0)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    amp.backward(model(torch.randn(3, 4)).sum() * 1e30)
    amp.step(optimizer)
    assert amp.skipped
    assert amp.scale == 128.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    train(model, optimizer, amp, 1)
    assert not amp.skipped
    assert amp.scale == 128.0
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_zero_grad_clears_gradients_of_an_o2_model() -> None:
    model, optimizer, amp = made("O2")
    amp.backward(model(torch.randn(3, 4)).sum())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_resumed_amp_run_equals_the_uninterrupted_one_bit_for_bit(level: str, tmp_path: Any) -> None:
    whole = made(level, init_scale=64.0, growth_interval=2)
    train(*whole, steps=3)
    state = dict(zip(("model", "optimizer", "amp"), whole, strict=True))
    Checkpointer(tmp_path, state).save(3)
    train(*whole, steps=3)

    resumed = made(level, init_scale=64.0, growth_interval=2)
    train(*resumed, steps=1)  # elsewhere by now
    Checkpointer(tmp_path, dict(zip(("model", "optimizer", "amp"), resumed, strict=True))).restore()
    train(*resumed, steps=3)
    for one, other in zip(whole, resumed, strict=True):
        assert digest(one.state_dict()) == digest(other.state_dict())  # type: ignore[attr-defined]


def test_o2_step_without_amp_adopt_is_an_error() -> None:
    amp = Amp("O2", "cpu")
    model = amp.cast(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp.backward(model(torch.randn(3, 4)).sum())
    with pytest.raises(StateError, match=r"Call amp\.adopt\(optimizer\) first"):
        amp.step(optimizer)


def test_amp_adopt_refuses_a_second_optimizer() -> None:
    model, optimizer, amp = made("O2")
    amp.adopt(optimizer)  # they are its own
    with pytest.raises(ConfigError, match="Make another Amp"):
        amp.adopt(torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_amp_adopt_refuses_the_optimizer_of_an_uncast_fp32_model(level: str) -> None:
    with pytest.raises(ConfigError, match=rf"{level} has its weights in fp16, .* Call amp\.cast\(model\) before"):
        Amp(level, "cpu").adopt(torch.optim.SGD(net().parameters(), lr=0.1))


def test_amp_resume_from_o2_to_o1_is_refused() -> None:
    _, _, amp = made("O2")
    with pytest.raises(StateError, match="O1 has no place for them"):
        Amp("O1", "cpu").load_state_dict(amp.state_dict())


def test_amp_resume_from_o1_to_o2_takes_master_weights_from_the_model() -> None:
    _, _, before = made("O1", init_scale=32.0)
    model, optimizer, amp = made("O2")
    with torch.no_grad():
        model[0].weight.fill_(3.0)  # type: ignore[index]
    amp.load_state_dict(before.state_dict())
    assert torch.equal(optimizer.param_groups[0]["params"][0], torch.full((8, 4), 3.0))
    assert amp.scale == 32.0


def test_load_best_updates_the_o2_master_weights(job: JobHandle) -> None:
    model, optimizer, amp = made("O2", loss_scale=1.0)
    best = [p.detach().clone() for p in model.parameters()]
    back = []

    def on_epoch(trainer: Trainer, row: Any) -> None:
        back.append(all(torch.equal(a, b) for a, b in zip(best, model.parameters(), strict=True)))
        trainer.load_best()
        optimizer.param_groups[0]["lr"] = 0.0

    trainer = Trainer(model, nn.MSELoss(), optimizer, job=job, amp=amp, on_epoch=[on_epoch])
    trainer.save_best()
    trainer.fit((torch.zeros(4, 4), torch.ones(4, 1)), epochs=2, batch_size=2)
    assert back == [False, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": "O1", "keep_batchnorm_fp32": True}, "keep_batchnorm_fp32 has no effect at O1"),
        ({"level": "O2", "loss_scale": "high"}, "'high' is neither dynamic nor a positive number"),
        ({"level": "O2", "loss_scale": -1}, "-1 is neither dynamic"),
    ],
)
def test_invalid_or_ineffective_amp_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Amp(**options, device="cpu")


@pytest.mark.parametrize(
    ("level", "clip", "loss_scale"),
    [
        ("O1", {"clip_norm": 0.1}, None),
        pytest.param("O1", {}, None, marks=pytest.mark.slow),
        pytest.param("O2", {"clip_value": 0.01}, None, marks=pytest.mark.slow),
        pytest.param("O2", {"clip_norm": 0.1}, 32.0, marks=pytest.mark.slow),
        pytest.param("O3", {"clip_norm": 0.1}, 32.0, marks=pytest.mark.slow),
    ],
)
def test_overflow_on_one_rank_skips_the_accumulated_step_on_all_ranks(
    tmp_path: Path, level: str, clip: dict[str, float], loss_scale: float | None
) -> None:
    """Under accumulation, clipping and DDP: the scale halves on all ranks, and the weights stay the same bits."""
    with running(tmp_path, techniques.overflow, level, clip, loss_scale, size=2) as ranks:
        seen, others = ranks.answers
    assert seen == others
    assert [skipped for skipped, _, _ in seen] == [False, False, True, False, False, False]
    scales = [scale for _, scale, _ in seen]
    assert scales == ([32.0] * 6 if loss_scale else [64.0, 128.0, 64.0, 64.0, 128.0, 128.0])
    digests = [weights for _, _, weights in seen]
    assert digests[2] == digests[1]
    assert len(set(digests)) == 5


def test_amp_step_clips_by_value_but_refuses_norm_and_value_together() -> None:
    model, optimizer, amp = made("O2", init_scale=4.0)
    amp.backward(model(torch.full((3, 4), 100.0)).sum())
    with pytest.raises(ConfigError, match="Keep one"):
        amp.step(optimizer, clip_norm=1.0, clip_value=1.0)
    amp.step(optimizer, clip_value=0.01, parameters=model.parameters())
    grads = [p.grad for p in optimizer.param_groups[0]["params"]]
    assert max(g.abs().max().item() for g in grads) == pytest.approx(0.01)
