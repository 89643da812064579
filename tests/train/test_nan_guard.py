"""A loss that is NaN: all ranks say so at the same step, with the rank and the samples; or all skip the same step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.config.tree import TrainConfig
from clusterdp.errors import ConfigError, TrainError
from clusterdp.train import Amp, Group, JobHandle, Trainer
from clusterdp.train.optim.nan_guard import MOST_IN_A_ROW, NanGuard
from clusterdp.train.settings import WorkerSettings
from tests.torch_version import quiet_gloo
from tests.train import programs, techniques
from tests.train.ranks import running
from tests.train.runs import Run


@pytest.mark.parametrize(
    ("how", "level", "rank"),
    [
        ("input", "O0", 0),
        pytest.param("constant", "O0", 1, marks=pytest.mark.slow),
        pytest.param("input", "O1", 1, marks=pytest.mark.slow),
        pytest.param("constant", "bf16", 0, marks=pytest.mark.slow),
    ],
)
def test_nan_or_infinite_loss_stops_all_ranks_naming_its_rank_and_samples(
    tmp_path: Path, how: str, level: str, rank: int
) -> None:
    with running(tmp_path, techniques.not_finite, "stop", how, level, rank, size=2) as ranks:
        said = set(ranks.answers)
    what = "nan" if how == "input" else "inf"
    (line,) = said
    assert line.startswith(
        f"step 3: rank {rank}: the loss is {what}, of the samples [{20 + rank}]. Look at these samples"
    )


@quiet_gloo
@pytest.mark.parametrize(
    ("how", "level", "strategy"),
    [
        ("input", "O0", "ddp"),
        pytest.param("input", "O1", "ddp", marks=pytest.mark.slow),
        pytest.param("constant", "O0", "ddp", marks=pytest.mark.slow),
        pytest.param("input", "O1", "fsdp", marks=pytest.mark.slow),
        pytest.param("constant", "bf16", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_skipped_nan_step_changes_no_state_on_any_rank(tmp_path: Path, how: str, level: str, strategy: str) -> None:
    """Not even in the statistics of BatchNorm, which have seen the batch before its loss was known."""
    with running(tmp_path, techniques.not_finite, "skip", how, level, 0, strategy, size=2) as ranks:
        (ends, skipped, clean), (others, *_) = ranks.answers
    assert clean
    assert skipped == 1
    assert ends == others
    assert ends[2] == ends[1]
    assert len(set(ends)) == 4
    assert "step 3 was skipped: rank 0: the loss is" in ranks.rank_log(0)
    assert ranks.rank_log(1) == ""


@pytest.mark.slow
def test_infinite_gradient_with_finite_losses_is_reported_without_a_rank(tmp_path: Path) -> None:
    with running(tmp_path, techniques.not_finite, "stop", "gradient", size=2) as ranks:
        assert "step 3: the losses of all ranks are finite, but a gradient is not" in ranks.answers[0]


def test_nan_guard_ignores_an_overflow_of_the_loss_scaler(job: JobHandle) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp, nan_guard = Amp("O1", "cpu", init_scale=64.0), NanGuard(model, job.group, "stop")
    amp.backward(nan_guard.watch(model(torch.ones(1, 1)).sum()) * 1e38)
    amp.step(optimizer, nan_guard=nan_guard)
    assert amp.skipped
    assert amp.scale == 32.0


def test_nan_guard_does_not_change_the_trained_weights(job: JobHandle) -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        amp, nan_guard = Amp("O0", "cpu"), NanGuard(model, job.group, "stop")
        for x in torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            amp.backward(nan_guard.watch(loss) if watched else loss)
            amp.step(optimizer, nan_guard=nan_guard if watched else None)
        ends.append(model.weight.clone())
    assert torch.equal(*ends)


def test_nan_guard_fails_after_too_many_consecutive_skipped_steps(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    amp, nan_guard = Amp("O0", "cpu"), NanGuard(model, job.group, "skip")

    def step(x: float) -> None:
        optimizer.zero_grad()
        amp.backward(nan_guard.watch(model(torch.full((1, 1), x)).sum(), [7]))
        amp.step(optimizer, nan_guard=nan_guard)

    for _ in range(MOST_IN_A_ROW):
        step(float("nan"))
    step(1.0)
    for _ in range(MOST_IN_A_ROW):
        step(float("nan"))
    with pytest.raises(TrainError, match=r"the 11th in a row, so the weights are lost"):
        step(float("nan"))
    assert "step 1 was skipped: rank 0: the loss is nan, of the samples [7]" in capsys.readouterr().err


class Means:
    """An object, of which torchmetrics has many."""

    def __init__(self) -> None:
        self.outputs: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.outputs.append(outputs.mean())

    def compute(self) -> float:
        return float(torch.stack(self.outputs).mean())

    def reset(self) -> None:
        self.outputs = []


@pytest.mark.parametrize("accumulate", [1, 2])
def test_skipped_nan_batch_does_not_count_in_the_epochs_scores(job: JobHandle, accumulate: int) -> None:
    """Or one batch of ten thousand makes the loss NaN that a scheduler or early stopping goes by."""
    x = torch.arange(10.0).reshape(10, 1)
    x[4] = float("nan")
    batches = [*zip(x.split(2), torch.zeros(10, 1).split(2), strict=True)]

    def first(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return outputs[0].item()

    def each(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.flatten()

    rows = {}
    for on_nan in ("skip", None):
        handle = JobHandle(WorkerSettings(train=TrainConfig(on_nan=on_nan)), job.group, job.stop_signal, "1.0")
        net = nn.Linear(1, 1)
        nn.init.ones_(net.weight)
        nn.init.zeros_(net.bias)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        metrics = {"first": first, "each": each, "object": Means()}
        trainer = Trainer(net, nn.MSELoss(), optimizer, metrics, job=handle, accumulate=accumulate)
        (rows[on_nan],) = trainer.fit(batches)
        assert math.isnan(trainer.evaluate(batches)["loss"]), "of what is evaluated nothing is skipped"
    good = torch.cat([x[:4], x[6:]])
    skipped = rows["skip"]
    assert skipped["loss"] == pytest.approx(float(good.square().mean()))
    assert (skipped["first"], skipped["each"], skipped["object"]) == (4.0, float(good.mean()), float(good.mean()))
    assert math.isnan(rows[None]["loss"])


def test_skipped_step_after_a_restore_keeps_the_restored_batchnorm_statistics(job: JobHandle) -> None:
    model, amp = nn.BatchNorm1d(2), Amp("O0", "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nan_guard = NanGuard(model, job.group, "skip")
    model.load_state_dict(model.state_dict() | {"running_mean": torch.tensor([3.0, 4.0])})
    amp.backward(nan_guard.watch(model(torch.full((2, 2), float("nan"))).sum()))
    amp.step(optimizer, nan_guard=nan_guard)
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [3.0, 4.0]


def test_unknown_train_on_nan_value_is_refused(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match=r"train\.on_nan: 'ignore' is neither stop nor skip"):
        NanGuard(nn.Linear(1, 1), job.group, "ignore")


def test_worker_with_on_nan_stop_ends_all_ranks_naming_the_bad_sample(tmp_path: Path) -> None:
    """As the worker runs it, by config: the bad sample is number 13 of the data set."""
    train: dict[str, Any] = {"backend": "gloo", "on_nan": "stop", "accumulate": 2}
    run = Run(tmp_path / "run", "tests.train.techniques:meets_nan", {"bad": 13}, train=train)
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        assert ranks.join() == [8, 8], ranks.log
    seen = next(line for line in ranks.rank_log(0).splitlines() if "the loss is nan" in line)
    assert " 13" in seen.split("[")[1] or "[13" in seen
    assert seen in ranks.rank_log(1)
    assert "Traceback" not in ranks.log
    assert run.outcome("1.0") is None


def test_nan_guard_makes_gradients_nan_if_a_constant_makes_the_loss_infinite(group: Group) -> None:
    """Or the other ranks, which see the gradients alone, would take a step that this one does not."""
    model = nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum() + float("inf")
    NanGuard(model, group).watch(loss).backward()  # type: ignore[no-untyped-call]
    assert all(bool(p.grad.isnan().all()) for p in model.parameters() if p.grad is not None)
    assert model.weight.grad is not None
