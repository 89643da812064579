"""The best model: a store that is away costs no training, and what the run has gone back behind is nobody's best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import list_checkpoints
from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError
from clusterdp.storage import LocalStorage
from clusterdp.train import JobHandle, Trainer, early_stopping, keep_best
from clusterdp.train.settings import WorkerSettings
from tests.train.trainings import FEATURES, Noisy

EPOCH = 6  # steps; the run saves after every four


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """At these steps the best model cannot be written; the run's checkpoints can."""
    steps: set[int] = set()
    write = LocalStorage.write

    def fail(self: LocalStorage, name: str, chunks: Iterable[memoryview]) -> None:
        if "-best" in self.url and int(Path(name).parts[0].removeprefix("step_")) in steps:
            raise OSError(5, "Input/output error")
        write(self, name, chunks)

    monkeypatch.setattr(LocalStorage, "write", fail)
    return steps


def fit(
    job: JobHandle, *values: float, lr: float = 0.1, attempt: str = "1.0", on_step: Any = (), **settings: Any
) -> Trainer:
    """An epoch a value, which is what its score is."""
    saving = replace(job.saving, every_steps=4, keep_last=9, max_failures=1, async_save=False)
    settings = {"checkpoint": saving, **settings}
    job = JobHandle(replace(job._settings, **settings), job.group, job.stop_signal, attempt)
    torch.manual_seed(0)
    net = nn.Linear(FEATURES, 3)
    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(net.parameters(), lr=lr),
        {"score": lambda outputs, targets: values[trainer.loop.epoch]},  # type: ignore[union-attr]
        job=job,
        on_step=on_step,
        on_epoch=[keep_best("score", mode="max")],
    )
    trainer.fit(Noisy(), epochs=len(values))
    return trainer


def kept(job: JobHandle) -> list[int]:
    return [info.step for info in list_checkpoints(f"{job.saving.url}-best")]


def test_failed_best_model_save_is_reported_and_a_later_better_model_kept(
    job: JobHandle, away: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    away.add(2 * EPOCH)
    trainer = fit(job, 1, 5, 3, 2)
    assert len(trainer.history) == 4
    assert "clusterdp: the best model was not saved (1 in a row): " in capsys.readouterr().err
    assert kept(job) == [3 * EPOCH]
    assert trainer.load_best() == 3 * EPOCH


def test_repeatedly_failing_best_model_saves_do_not_end_the_attempt(job: JobHandle, away: set[int]) -> None:
    """The run's own checkpoints are safe; to end it would cost the steps since."""
    away.update(EPOCH * n for n in range(1, 6))
    trainer = fit(job, 1, 2, 3, 4, 5)
    assert len(trainer.history) == 5
    assert trainer.load_best() is None
    assert trainer.best_model._tolerate.failures == 5
    assert kept(job) == []


def test_resumed_attempt_compares_new_scores_with_the_kept_best_model(job: JobHandle, away: set[int]) -> None:
    away.add(2 * EPOCH)
    fit(job, 1, 5)
    fit(job, 1, 5, 3, attempt="1.1")  # better than what is kept, though not than what was lost
    assert kept(job) == [3 * EPOCH]
    fit(job, 1, 5, 3, 2, attempt="1.2")
    assert kept(job) == [3 * EPOCH]


def test_load_best_ignores_a_best_model_saved_after_the_resumed_step(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(job, 3, 4, 9)
    found: list[Any] = []

    def look(trainer: Trainer, values: Any) -> None:
        before = torch.clone(trainer.net.weight)  # type: ignore[arg-type]
        found.append((trainer.load_best(), torch.equal(before, trainer.net.weight)))  # type: ignore[arg-type]
        trainer.callbacks.on_step.clear()

    fit(job, 3, 4, attempt="1.1", resume_step=EPOCH + 2, on_step=[look])
    assert found == [(None, True)]
    said = "the best model is of epoch 3 as it was before the run went back behind it: it is not loaded"
    assert said in capsys.readouterr().out


def test_best_model_of_a_repeated_epoch_replaces_the_discarded_one(job: JobHandle) -> None:
    """It has the same number, and the same step."""
    fit(job, 3, 9, 1)
    again = fit(job, 3, 4, attempt="1.1", resume_step=EPOCH + 2, lr=0.2)
    assert kept(job) == [2 * EPOCH]
    last = torch.clone(again.net.weight)  # type: ignore[arg-type]
    assert again.load_best() == 2 * EPOCH
    assert torch.equal(last, again.net.weight)  # type: ignore[arg-type]


def test_best_model_without_checkpoints_is_kept_in_memory(job: JobHandle) -> None:
    trainer = fit(job, 1, 5, 2, checkpoint=CheckpointConfig())
    best = fit(job, 1, 5, checkpoint=CheckpointConfig()).net.weight
    assert not torch.equal(trainer.net.weight, best)  # type: ignore[arg-type]
    assert trainer.load_best() == 2 * EPOCH
    assert torch.equal(trainer.net.weight, best)  # type: ignore[arg-type]


def test_load_best_before_any_save_returns_none(job: JobHandle) -> None:
    trainer = Trainer(nn.Linear(FEATURES, 3), job=JobHandle(WorkerSettings(), job.group, job.stop_signal, "1.0"))
    assert trainer.load_best() is None


def test_each_phase_has_its_own_best_model(job: JobHandle) -> None:
    trainers = []
    for name in ("first", "second"):
        net = nn.Linear(FEATURES, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, on_epoch=[keep_best("loss")], name=name)
        trainer.fit(Noisy(), epochs=1)
        trainers.append((trainer, torch.clone(net.weight)))
    for trainer, weight in trainers:
        assert trainer.load_best() == EPOCH
        assert torch.equal(trainer.net.weight, weight)  # type: ignore[arg-type]


def test_load_best_in_a_trainer_without_history_loads_the_saved_best_model(job: JobHandle) -> None:
    """Without a history."""
    trained = fit(job, 1, 2)
    other = Trainer(nn.Linear(FEATURES, 3), job=job)
    assert other.load_best() == 2 * EPOCH
    assert torch.equal(other.net.weight, trained.net.weight)  # type: ignore[arg-type]


def test_load_best_after_save_best_in_mid_epoch_returns_the_saved_step(job: JobHandle) -> None:
    found: list[Any] = []

    def by_hand(trainer: Trainer, values: Any) -> None:
        if trainer.loop is not None and trainer.loop.step in (1, EPOCH + 1):
            trainer.save_best()
            found.append(trainer.load_best())

    net = nn.Linear(FEATURES, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, on_step=[by_hand]).fit(Noisy(), epochs=2)
    assert found == [1, EPOCH + 1]


def test_second_rule_of_a_best_model_is_refused(job: JobHandle) -> None:
    net = nn.Linear(FEATURES, 3)
    stop = early_stopping("val_loss", load_best=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, on_epoch=[keep_best("loss")], callbacks=[stop])
    with pytest.raises(ConfigError, match=r"by loss \(min\), and cannot keep another by val_loss \(min\)"):
        trainer.fit(Noisy(), Noisy(), epochs=1)
