"""Exactly N steps, N batches of an epoch, an evaluation every N epochs, and one batch to find errors."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from clusterdp.checkpoint import list_checkpoints
from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer, early_stopping, plateau
from tests.checkpoint.training import digest
from tests.train.test_trainer import trained

DATA = torch.arange(40.0).reshape(20, 2), torch.zeros(20, 1)  # 5 batches of 4 samples an epoch


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(x, y) for x, y in zip(*DATA, strict=True)])


def trainer_of(job: JobHandle, **options: Any) -> Trainer:
    torch.manual_seed(0)
    net = nn.Linear(2, 1)
    return Trainer(net, nn.MSELoss(), torch.optim.SGD(net.parameters(), lr=1e-5), job=job, **options)


def test_fit_ends_after_max_steps_and_a_later_call_goes_on(job: JobHandle) -> None:
    trainer = trainer_of(job)
    assert [row["step"] for row in trainer.fit(DATA, max_steps=7, batch_size=4)] == [5, 7]
    assert [row["step"] for row in trainer.fit(DATA, max_steps=7, batch_size=4)] == [5, 7]
    assert [row["step"] for row in trainer.fit(DATA, max_steps=13, batch_size=4)] == [5, 7, 12, 13]


def test_total_steps_are_limited_by_max_steps_from_the_first_step(job: JobHandle) -> None:
    totals: list[Any] = []
    on_step = [lambda trainer, values: totals.append(trainer.loop.total_steps)]
    trainer_of(job, on_step=on_step).fit(DATA, max_steps=7, batch_size=4)
    assert totals == [7] * 7


def test_epochs_and_max_steps_end_the_training_whichever_comes_first(job: JobHandle) -> None:
    assert trainer_of(job, name="a").fit(DATA, epochs=1, max_steps=7, batch_size=4)[-1]["step"] == 5
    assert trainer_of(job, name="b").fit(DATA, epochs=2, max_steps=7, batch_size=4)[-1]["step"] == 7


@pytest.mark.parametrize("data", [DATA, DataLoader(Stream(), 4), [DATA] * 5], ids=["tensors", "stream", "list"])
def test_limit_batches_ends_epochs_and_evaluations_of_any_data(job: JobHandle, data: Any) -> None:
    seen: list[int] = []

    def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
        seen.append(int(trainer.net.training))
        return trainer.model(batch[0]).mean()  # type: ignore[no-any-return]

    trainer = trainer_of(job, forward=forward)
    options = {"batch_size": 4} if data is DATA else {}
    assert [row["step"] for row in trainer.fit(data, data, epochs=2, limit_batches=3, **options)] == [3, 6]
    assert seen == [1, 1, 1, 0, 0, 0] * 2


def test_limit_above_the_number_of_batches_keeps_all_of_them(job: JobHandle) -> None:
    whole = trainer_of(job, name="a").fit(DATA, epochs=2, batch_size=4)
    assert trainer_of(job, name="b").fit(DATA, epochs=2, batch_size=4, limit_batches=9).rows == whole.rows


@pytest.mark.parametrize(
    ("epochs", "limits", "fault"),
    [
        pytest.param(None, {"max_steps": 26}, ["SIGTERM", 14, 1], id="max_steps"),
        pytest.param(None, {"max_steps": 26}, ["SIGTERM", 26, 0], id="max_steps, after the last"),
        pytest.param(4, {"limit_batches": 6, "val_every": 3}, ["SIGTERM", 15, 0], id="limit, in an epoch"),
        pytest.param(4, {"limit_batches": 6}, ["SIGTERM", 11, 1], id="limit, at its end", marks=pytest.mark.slow),
        pytest.param(4, {"limit_batches": 6}, ["SIGKILL", 14, 1], id="limit, killed", marks=pytest.mark.slow),
    ],
)
def test_limited_run_with_a_fault_equals_the_undisturbed_one(
    tmp_path: Path, epochs: Any, limits: Any, fault: Any
) -> None:
    _, whole = trained(tmp_path / "whole", 2, epochs=epochs, limits=limits)
    run, resumed = trained(tmp_path / "resumed", 2, fault, epochs=epochs, limits=limits)
    assert "restored" in run.events
    assert resumed == whole
    assert whole[0]["history"][-1]["step"] == limits.get("max_steps", 24)


def test_val_every_evaluates_every_nth_and_the_last_epoch(job: JobHandle) -> None:
    history = trainer_of(job).fit(DATA, DATA, epochs=5, val_every=2, batch_size=4)
    assert [row["epoch"] for row in history if "val_loss" in row] == [2, 4, 5]


def test_callbacks_and_schedulers_ignore_epochs_without_an_evaluation(job: JobHandle) -> None:
    def rises(trainer: Trainer, batch: Any) -> torch.Tensor:
        return trainer.model(batch[0]).mean() * 0 + trainer.loop.step  # type: ignore[union-attr,no-any-return]

    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedulers = [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=100) for _ in range(2)]
    calls = [early_stopping("val_loss", patience=2), plateau(schedulers[0])]
    own: dict[str, Any] = {"scheduler": schedulers[1], "on_epoch": calls, "forward": rises}
    history = Trainer(net, None, optimizer, job=job, **own).fit(DATA, DATA, epochs=20, val_every=2, batch_size=4)
    assert len(history) == 6  # the best of epochs 2, 4 and 6 is the first one
    assert [scheduler.last_epoch for scheduler in schedulers] == [3, 3]


def test_fast_dev_run_keeps_neither_history_nor_position_nor_checkpoint(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[int] = []
    trainer = trainer_of(job, on_epoch=[lambda trainer, row: called.append(1)])
    row = trainer.fit(DATA, DATA, epochs=3, batch_size=4, fast_dev_run=True)[0]
    assert {"loss", "val_loss"} <= set(row)
    assert "clusterdp: fast_dev_run: epoch 1  step 1  loss " in capsys.readouterr().out
    assert (len(trainer.history), called) == (0, [])
    assert job.run_dir is None or not list_checkpoints(f"{job.run_dir}/checkpoints")
    assert trainer.fit(DATA, DATA, batch_size=4)[-1]["step"] == 5


def test_fast_dev_run_restores_all_state_and_the_place_of_a_loader(job: JobHandle) -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.Dropout())
    optimizer = torch.optim.Adam(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    trainer = Trainer(net, nn.MSELoss(), optimizer, scheduler=scheduler, job=job)
    loader = job.loader(DATA, 4)
    parts = (net, optimizer, scheduler)
    before = digest([*(part.state_dict() for part in parts), torch.get_rng_state()])
    trainer.fit(loader, DATA, fast_dev_run=True)
    assert digest([*(part.state_dict() for part in parts), torch.get_rng_state()]) == before
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [row["step"] for row in trainer.fit(loader, epochs=2)] == [5, 10]


class Placed:
    """An endless loader with a position of its own."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Any:
        while True:
            self.place += 1
            yield DATA

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_limit_batches_is_refused_for_a_loader_with_its_own_position(job: JobHandle) -> None:
    trainer = trainer_of(job)
    with pytest.raises(ConfigError, match="limit_batches: the loader has a position of its own"):
        trainer.fit(Placed(), limit_batches=3)
    loader = Placed()
    trainer.fit(loader, fast_dev_run=True)
    assert loader.place == 0
    assert trainer.fit(loader, max_steps=3)[-1]["step"] == 3


def test_max_steps_takes_a_generator(job: JobHandle) -> None:
    endless = (DATA for _ in count())
    assert trainer_of(job).fit(endless, max_steps=4)[-1]["step"] == 4


def test_more_max_steps_go_on_after_an_early_stop(job: JobHandle, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(job, on_epoch=[lambda trainer, row: trainer.stop("enough")])
    assert trainer.fit(DATA, max_steps=30, batch_size=4)[-1]["step"] == 5
    assert trainer.fit(DATA, max_steps=30, batch_size=4)[-1]["step"] == 5
    assert trainer.fit(DATA, max_steps=40, batch_size=4)[-1]["step"] == 10
    assert str(sys.maxsize) not in capsys.readouterr().out


def test_workers_of_an_evaluation_are_shielded_from_stop_signals(job: JobHandle) -> None:
    class Blocked(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
            return torch.tensor([float(blocked)]), 0

    trainer = trainer_of(job, forward=lambda trainer, batch: batch[0].mean())
    with job.stop_signal.install():
        assert trainer.evaluate(Blocked(), batch_size=2, num_workers=1)["loss"] == 1.0


def test_fast_dev_run_finds_an_error_of_the_validation(job: JobHandle) -> None:
    def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
        if not trainer.net.training:
            raise ValueError("in the validation")
        return trainer.model(batch[0]).mean()  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match="in the validation"):
        trainer_of(job, forward=forward).fit(DATA, DATA, batch_size=4, fast_dev_run=True)


def test_log_every_prints_means_of_the_steps_since_the_last_line(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(trainer: Trainer, batch: Any) -> dict[str, Any]:
        assert trainer.loop is not None
        assert trainer.optimizer is not None
        trainer.net(batch[0]).sum().backward()
        trainer.optimizer.step()
        return {"loss": torch.tensor([float(trainer.loop.step)]), "half": trainer.loop.step / 2}

    trainer_of(job, step=step).fit(DATA, epochs=2, batch_size=4, log_every=4)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("clusterdp: step")]
    assert [line[:3] for line in lines] == [
        ["clusterdp: step 4/10", "loss 1.5", "half 0.75"],
        ["clusterdp: step 8/10", "loss 5.5", "half 2.75"],
    ]
    assert all(line[3].endswith(" samples/s") and " s, " in line[3] for line in lines)


@pytest.mark.slow
def test_log_every_prints_the_means_of_each_rank_in_its_own_log(tmp_path: Path) -> None:
    trained(tmp_path / "run", 2, limits={"log_every": 5})
    logs = [(tmp_path / f"run/run/1.0/log-{rank}").read_text() for rank in range(2)]
    lines = [[line for line in log.splitlines() if line.startswith("clusterdp: step ")] for log in logs]
    assert [len(each) for each in lines] == [6, 6]
    assert lines[0] != lines[1]


@pytest.mark.parametrize("name", ["max_steps", "limit_batches", "val_every", "log_every"])
def test_limits_below_1_are_refused_by_name(job: JobHandle, name: str) -> None:
    fit: Callable[..., Any] = trainer_of(job).fit
    with pytest.raises(ConfigError, match=f"{name}: 0 is less than 1"):
        fit(DATA, **{name: 0})
