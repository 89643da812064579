"""Callbacks of several moments, with state, and evaluations within an epoch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.config.tree import CheckpointConfig
from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, Trainer, early_stopping
from clusterdp.train.settings import WorkerSettings
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


def test_callbacks_of_one_name_keep_their_own_state(job: JobHandle) -> None:
    class Count(Moments):
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: Any) -> None: ...

    same_name = type("Count", (Count,), {})
    trainer = trainer_of(job, callbacks=[Count(), Count(), same_name()])
    assert {"callback.Count", "callback.Count.2", "callback.Count.3"} <= trainer._state.keys()


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
        pytest.param(["SIGTERM", 4, 0, 1], id="preempted in the first batch of one", marks=pytest.mark.slow),
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


def test_object_in_on_epoch_is_refused_with_its_place(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match=r"on_epoch: a _LoadsBest is not a function\. Pass it in callbacks=\["):
        trainer_of(job, on_epoch=[early_stopping(load_best=True)])


def test_early_stopping_with_load_best_leaves_the_weights_of_the_best_epoch(job: JobHandle) -> None:
    losses = iter([3.0, 1.0, 2.0, 2.5, 2.7])

    def note(trainer: Trainer, row: Any) -> None:
        row["measured"] = next(losses)
        seen.append([p.detach().clone() for p in trainer.net.parameters()])

    seen: list[list[torch.Tensor]] = []
    stop = early_stopping("measured", patience=2, load_best=True)
    trainer = trainer_of(job, callbacks=[note, stop])
    assert len(trainer.fit(DATA, epochs=9, batch_size=4)) == 4
    assert all(map(torch.equal, trainer.net.parameters(), seen[1]))
    assert not torch.equal(seen[1][0], seen[3][0])


def test_attributes_of_a_callback_are_not_moments(job: JobHandle) -> None:
    class Flagged(Moments):
        on_gpu = True

    assert trainer_of(job, callbacks=[Flagged()]).fit(DATA, batch_size=4)


def test_start_and_end_callbacks_come_in_pairs_without_a_step(job: JobHandle) -> None:
    moments = Moments()
    trainer = trainer_of(job, callbacks=[moments])
    trainer.fit(DATA, batch_size=4)
    moments.seen.clear()
    trainer.fit(DATA, batch_size=4)
    assert moments.seen == ["start", "end"]


def test_error_of_an_exception_callback_does_not_replace_the_first(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    class Bad:
        def on_exception(self, trainer: Trainer, error: BaseException) -> None:
            raise KeyError("of the callback")

    def fail(trainer: Trainer, values: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        trainer_of(job, callbacks=[Bad()], on_step=[fail]).fit(DATA, batch_size=4)
    assert "on_exception failed: KeyError: 'of the callback'" in capsys.readouterr().err


def test_evaluation_within_an_epoch_waits_for_the_end_of_a_detected_window(job: JobHandle) -> None:
    def step(trainer: Trainer, batch: Any) -> dict[str, torch.Tensor]:
        assert trainer.loop is not None
        assert trainer.optimizer is not None
        loss = trainer.model(batch[0]).square().mean()
        loss.backward()
        if (trainer.loop.step + 1) % 4 == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        return {"loss": loss.detach()}

    trainer = trainer_of(job, step=step)
    data = torch.ones(40, 2), torch.zeros(40, 1)
    history = trainer.fit(data, data, epochs=2, batch_size=2, val_every_steps=6)
    assert [row["step"] for row in history.within] == [8, 12, 24, 32, 36]  # step 20 ends an epoch


def test_evaluation_within_an_epoch_adds_no_time_to_the_data(job: JobHandle) -> None:
    def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
        if not trainer.net.training:
            time.sleep(0.02)
        return trainer.model(batch[0]).mean()  # type: ignore[no-any-return]

    trainer = trainer_of(job, forward=forward)
    trainer.fit(DATA, DATA, epochs=4, batch_size=4, val_every_steps=4)
    report = job.stopwatch.report(job.group)
    assert report is not None
    assert report["ranks"][0]["ms"]["data"] < 5  # with the evaluations' 100 ms it would be 10 or more


@pytest.mark.parametrize("within", [None, 6])
def test_training_ended_at_a_saved_step_stays_ended_in_the_next_attempt(job: JobHandle, within: int | None) -> None:
    """stop() takes effect at step 6, which a periodic save has kept; the process ends in the evaluation after it."""

    def run(attempt: str, fault: bool) -> Trainer:
        saving = CheckpointConfig(url=f"{job.run_dir}/saved", every_steps=6)
        settings = WorkerSettings(run_dir=job.run_dir, checkpoint=saving)
        handle = JobHandle(settings, job.group, job.stop_signal, attempt)

        def forward(trainer: Trainer, batch: Any) -> torch.Tensor:
            if fault and not trainer.net.training and trainer.loop is not None and trainer.loop.step == 6:
                raise KeyboardInterrupt
            return trainer.model(batch[0]).square().mean()  # type: ignore[no-any-return]

        def stop(trainer: Trainer, values: Any) -> None:
            if trainer.loop is not None and trainer.loop.step == 5:
                trainer.stop()

        trainer = trainer_of(handle, forward=forward, on_step=[stop])
        try:
            trainer.fit((torch.ones(80, 2), torch.zeros(80, 1)), DATA, epochs=2, batch_size=4, val_every_steps=within)
        except KeyboardInterrupt:
            assert trainer.loop is not None
            trainer.loop.saves.now(6)
        return trainer

    run("1.0", fault=True)
    trainer = run("1.1", fault=False)
    assert trainer.loop is not None
    assert (trainer.loop.step, len(trainer.history), trainer.history.within) == (6, 1, [])
