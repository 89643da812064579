"""Callbacks of several moments, with state, and evaluations within an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer
from tests.train.test_limits import DATA, trainer_of
from tests.train.test_trainer import trained


class Moments:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_start(self, trainer: Trainer) -> None:
        self.seen.append("start")

    def on_step(self, trainer: Trainer, values: Any) -> None:
        self.seen.append("step")

    def on_validation(self, trainer: Trainer, row: Any) -> None:
        self.seen.append(f"validation {row['step']}")

    def on_epoch(self, trainer: Trainer, row: Any) -> None:
        self.seen.append("epoch")

    def on_exception(self, trainer: Trainer, error: BaseException) -> None:
        self.seen.append(repr(error))

    def on_end(self, trainer: Trainer) -> None:
        self.seen.append("end")


def test_callback_object_is_called_at_each_of_its_moments(job: JobHandle) -> None:
    moments = Moments()
    trainer_of(job, callbacks=[moments]).fit(DATA, DATA, batch_size=4, val_every_steps=3)
    assert moments.seen == [
        *["start", "step", "step", "step", "validation 3", "step", "step"],
        *["validation 5", "epoch", "end"],
    ]


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt()])
def test_exception_callback_gets_the_error_of_fit(job: JobHandle, error: BaseException) -> None:
    def fail(trainer: Trainer, values: Any) -> None:
        raise error

    moments = Moments()
    with pytest.raises(type(error)):
        trainer_of(job, callbacks=[moments], on_step=[fail]).fit(DATA, batch_size=4)
    assert moments.seen == ["start", "step", repr(error)] or moments.seen == ["start", repr(error)]


def test_callback_functions_are_called_after_each_epoch(job: JobHandle) -> None:
    seen: list[int] = []
    trainer_of(job, callbacks=lambda trainer, row: seen.append(row["epoch"])).fit(DATA, epochs=2, batch_size=4)
    assert seen == [1, 2]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "on_fit_start",
            "callbacks: Foreign.on_fit_start() would never be called. Pass an object with on_start(trainer)",
        ),
        ("on_nothing", "callbacks: Foreign.on_nothing() would never be called. There are: on_start, on_step"),
    ],
)
def test_callback_with_a_foreign_method_is_refused_with_ours(job: JobHandle, method: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_of(job, callbacks=[type("Foreign", (), {method: lambda self: None})()])
    assert str(caught.value).startswith(said)


def test_two_callbacks_of_one_class_keep_their_own_state(job: JobHandle) -> None:
    class Count(Moments):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    trainer = trainer_of(job, callbacks=[Count(), Count()])
    assert {"callback.Count", "callback.Count.2"} <= trainer._state.keys()


def test_evaluations_within_an_epoch_come_at_the_given_steps(job: JobHandle) -> None:
    trainer = trainer_of(job)
    history = trainer.fit(DATA, DATA, epochs=3, batch_size=4, val_every_steps=5, val_every=2)
    assert [(row["epoch"], row["step"]) for row in history.within] == [(1, 5)]  # the others end with an evaluation
    assert [row["epoch"] for row in history if "val_loss" in row] == [2, 3]
    assert all("val_loss" in row for row in history.within)


def test_evaluation_within_an_epoch_leaves_the_training_unchanged(job: JobHandle) -> None:
    def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
        return (trainer.model(batch[0]) * torch.rand(())).square().mean()  # type: ignore[no-any-return]

    weights = []
    for name, every in (("a", None), ("b", 2)):
        trainer = trainer_of(job, name=name, forward=forward)
        trainer.fit(DATA, DATA, epochs=1, batch_size=4, val_every_steps=every)
        weights.append([p.detach().clone() for p in trainer.net.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(["SIGTERM", 6, 1, 6], id="preempted in the second one"),
        pytest.param(["SIGTERM", 4, 0, 1], id="preempted in the first batch of one"),
        pytest.param(["SIGKILL", 15, 0, 22], id="killed in the second epoch", marks=pytest.mark.slow),
    ],
)
def test_run_stopped_in_an_evaluation_within_an_epoch_equals_the_undisturbed_one(tmp_path: Path, fault: Any) -> None:
    _, whole = trained(tmp_path / "whole", 2, entry="validates")
    run, resumed = trained(tmp_path / "resumed", 2, fault, entry="validates")
    assert "restored" in run.events
    assert resumed == whole
    assert [row["step"] for row in whole[0]["within"]] == [4, 6, 10, 13, 15, 19, 21]
    assert whole[0]["worst"]["evaluations"] == 9
