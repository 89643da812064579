from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle
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


DATA = TensorDataset(torch.arange(16.0))
Make = Callable[[Optimizer, int], Any]
WARMED: Make = lambda optimizer, steps: lr_scheduler.SequentialLR(  # noqa: E731
    optimizer,
    [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.CosineAnnealingLR(optimizer, steps - 2)],
    milestones=[2],
)
NOW = "by the checkpoint, and this attempt has made it with"
SCHEDULES: dict[str, tuple[Make, str | None]] = {
    "CosineAnnealingLR": (lr_scheduler.CosineAnnealingLR, f"its CosineAnnealingLR's T_max is 8 {NOW} 16"),
    "OneCycleLR": (lambda optimizer, steps: lr_scheduler.OneCycleLR(optimizer, 0.1, steps), f"total_steps is 8 {NOW}"),
    "PolynomialLR": (lr_scheduler.PolynomialLR, f"PolynomialLR's total_iters is 8 {NOW}"),
    "MultiStepLR": (
        lambda optimizer, steps: lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps]),
        f"MultiStepLR's milestones is [4, 8] {NOW} [8, 16]",
    ),
    "LambdaLR": (
        lambda optimizer, steps: lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps),
        "at its step 3, the learning rate was 0.0625, and its function, which is not in the checkpoint, now gives 0.08",
    ),
    "SequentialLR": (WARMED, f"CosineAnnealingLR's T_max is 6 {NOW} 14"),
    "a fixed number": (
        lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, 8),
        "T_max is 8, for a run of 8 steps; the run has 13 now",
    ),
    "by epochs": (lambda optimizer, steps: lr_scheduler.CosineAnnealingLR(optimizer, 2), None),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_for_other_steps_is_reported_at_the_restore(
    job: JobHandle, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    make, told = SCHEDULES[kind]

    def attempt(number: int, batch_size: int) -> str:
        handle = JobHandle(job._settings, job.group, job.stop_signal, f"1.{number}")
        loader = job.loader(DATA, batch_size)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = make(optimizer, 2 * len(loader))
        loop = handle.loop(loader, {"scheduler": scheduler, "optimizer": optimizer}, epochs=2)
        for _ in loop:
            optimizer.step()
            scheduler.step()
            if loop.step + 1 == 3:
                loop.save()
            if loop.step >= 3:
                break
        return capsys.readouterr().out

    assert "state.scheduler" not in attempt(0, 4) + attempt(1, 4)
    said = attempt(2, 2)
    assert "state.scheduler" not in said if told is None else told in said


def test_schedule_made_for_the_batches_of_a_rank_is_reported(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    job.train.global_batch_size = 8
    loader = job.loader(DATA, 2)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    for steps, says in ((2 * len(loader), True), (job.steps(loader, 2), False)):
        handle = JobHandle(job._settings, job.group, job.stop_signal, "1.0")
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, steps)
        loop = handle.loop(loader, {"scheduler": scheduler, "optimizer": optimizer}, epochs=2)
        next(iter(loop))
        told = "CosineAnnealingLR's T_max is 16, as epochs x len(loader) on this number of ranks. The run has 4 steps"
        assert (told in capsys.readouterr().err) is says
