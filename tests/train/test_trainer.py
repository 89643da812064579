"""Trainer: what job.loop promises, with less to write; and scores and predictions as one process would give them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.config import from_plain
from clusterdp.config.tree import AmpConfig, TrainConfig
from clusterdp.errors import ConfigError, EntryError
from clusterdp.train import Amp, JobHandle, Trainer
from clusterdp.train.settings import WorkerSettings
from tests.train import programs, techniques, trainings
from tests.train.ranks import Ranks, running, wait_until
from tests.train.runs import Run

ENTRY = "tests.train.trainings:"


def attempt(run: Run, name: str, size: int) -> Ranks:
    with running(run.path / name, programs.run_worker, str(run.path), size=size, env=run.attempt(name)) as ranks:
        codes = lambda: [process.exitcode for process in ranks.processes]  # noqa: E731
        wait_until(lambda: None not in codes() or any(codes()), "the end of the attempt")
        return ranks


def trained(
    folder: Path, size: int, fault: list[Any] | None = None, entry: str = "fit", **params: Any
) -> tuple[Run, list[Any]]:
    """To its end, in two attempts if there is a fault. What each rank ended with."""
    folder.mkdir()
    run = Run(
        folder / "run",
        entry if ":" in entry else ENTRY + entry,
        {"record": str(folder), **params, "fault": fault},
        checkpoint={"every_steps": 4},
    )
    ranks = attempt(run, "1.0", size)
    if fault:
        config = json.loads(run.dir.config.read_text())
        config["params"]["fault"] = None
        run.dir.config.write_text(json.dumps(config))
        ranks = attempt(run, "1.1", size)
    assert ranks.join() == [0] * size, ranks.log
    return run, [json.loads((folder / f"end-{rank}").read_text()) for rank in range(size)]


@pytest.mark.parametrize(
    ("size", "fault"),
    [
        pytest.param(2, ["SIGTERM", 14, 1], id="two ranks, preempted in the second epoch"),
        pytest.param(1, ["SIGKILL", 18, 0], id="one rank, killed in the second epoch", marks=pytest.mark.slow),
        pytest.param(4, ["SIGTERM", 6, 3], id="four ranks, preempted in the first", marks=pytest.mark.slow),
    ],
)
def test_preempted_or_killed_trainer_run_equals_the_uninterrupted_one_with_its_history(
    tmp_path: Path, size: int, fault: list[Any]
) -> None:
    _, whole = trained(tmp_path / "whole", size, amp="fp16")
    run, resumed = trained(tmp_path / "resumed", size, fault, amp="fp16")
    assert "restored" in run.events
    assert resumed == whole
    assert len(whole[0]["history"]) == 3
    assert all(rank["history"] == whole[0]["history"] for rank in whole)
    assert all(rank["best"] < 1e-6 for rank in whole)


def test_trainer_stopped_in_an_epoch_callback_closes_the_epoch_once(tmp_path: Path) -> None:
    """The callbacks come after the epoch's row and its scheduler: what were saved among them would get both again."""
    _, whole = trained(tmp_path / "whole", 2, entry="evaluates_after_epochs")
    run, resumed = trained(tmp_path / "resumed", 2, ["SIGTERM", 1, 1], entry="evaluates_after_epochs")
    assert "restored" in run.events
    assert resumed == whole
    assert [row["epoch"] for row in whole[0]["history"]] == [1, 2, 3]


@pytest.fixture(scope="module")
def by_one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Scores and predictions of one process, by the number of samples."""
    return {size: of_ranks(tmp_path_factory.mktemp("one") / str(size), 1, size)[0] for size in (23, 3)}


def of_ranks(folder: Path, ranks: int, size: int) -> list[Any]:
    with running(folder, programs.with_job, "tests.train.trainings:alone", {"size": size}, size=ranks) as started:
        return started.answers


@pytest.mark.parametrize(("ranks", "size"), [(2, 23), (4, 3)])
def test_trainer_scores_and_predictions_equal_one_process(by_one: Any, tmp_path: Path, ranks: int, size: int) -> None:
    """Uneven: 23 samples in batches of 4 over 2 ranks; and 3 samples over 4: one rank has none."""
    scores, _ = by_one[size]
    answers = of_ranks(tmp_path / "ranks", ranks, size)
    assert all(answer == answers[0] for answer in answers)  # that they are in order, each rank has looked at itself
    assert answers[0][0] == pytest.approx(scores, rel=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_evaluate_with_the_batchnorm_statistics_of_rank_0(tmp_path: Path, strategy: str) -> None:
    args = (programs.with_job, ENTRY + "statistics", {}, {"strategy": strategy})
    with running(tmp_path, *args, size=2) as ranks:
        (kept, _), (own, evaluated_with) = ranks.answers
    assert own != kept == evaluated_with


@pytest.mark.parametrize("where", ["step", "epoch", "plateau"])
def test_early_stop_on_one_rank_stops_all_ranks_at_the_same_step(tmp_path: Path, where: str) -> None:
    run = Run(tmp_path / "run", "x:y")
    args = (programs.with_job, "tests.train.trainings:stops_early", {"where": where})
    with running(tmp_path / "ranks", *args, size=2, env=run.attempt("1.0")) as ranks:
        first, second = ranks.answers
    assert first == second
    steps, epochs, resumed = first
    # A word later, in the first epoch; at the end of the first; after the best and two that were no better.
    assert (
        (steps < 11, epochs) == (True, 1)
        if where == "step"
        else (steps, epochs) == {"epoch": (11, 1)}.get(where, (33, 3))
    )
    # Asked for more epochs, it goes on: to the last; after one, as its callback has enough again; after another two.
    assert resumed == {"step": 10, "epoch": 2, "plateau": 5}[where]
    assert "the training was ended early, after epoch" in ranks.rank_log(0)
    assert f"epoch {epochs} of 9: more epochs than 9 go on from there." in ranks.rank_log(0)


def test_metric_returning_a_tensor_with_a_graph_becomes_a_float(job: JobHandle) -> None:
    net = nn.Linear(trainings.FEATURES, 3)
    trainer = Trainer(
        net,
        nn.CrossEntropyLoss(),
        torch.optim.SGD(net.parameters(), lr=0.1),
        {"odd": lambda outputs, targets: (outputs * next(net.parameters()).sum()).sum()},
        job=job,
    )
    history = trainer.fit(trainings.Noisy(), batch_size=16)
    assert isinstance(history[0]["odd"], float)


def test_metric_returning_text_on_one_rank_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY + "bad_metric", {"kind": "word", "rank": 1})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        codes = ranks.join()  # both: who is killed because the other has ended cannot say why
    assert 0 not in codes, ranks.log
    assert "clusterdp: metrics.odd: returned a str. Return a number, or one number a sample.\n" in ranks.rank_log(1)
    assert "Traceback" not in ranks.rank_log(1)


def test_metric_differing_between_ranks_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    """Else one rank would think that this epoch is the best and save it, and another one would not."""
    run = Run(tmp_path / "run", ENTRY + "own_metric")
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        codes = ranks.join()
    assert 0 not in codes, ranks.log
    for rank in (0, 1):
        said = ranks.rank_log(rank)
        assert re.search(r"metrics\.own: compute\(\) gave 0\.\d+ on rank 0 and 0\.\d+ on rank 1: it is of one", said), (
            said
        )
        assert "Traceback" not in said


def test_dead_loader_worker_on_one_rank_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", ENTRY + "worker_dies", {"rank": 1})
    with running(tmp_path / "ranks", programs.run_worker, str(run.path), size=2, env=run.attempt("1.0")) as ranks:
        codes = ranks.join()
    assert 0 not in codes, ranks.log
    assert "clusterdp: loader: DataLoader worker (pid" in ranks.rank_log(1)
    assert "If it was killed, memory ran out" in ranks.rank_log(1)
    assert "Traceback" not in ranks.rank_log(1)
    assert "rank 1: ClusterdpError: loader: DataLoader worker" in ranks.rank_log(0)


SCRIPT = """
import sys, torch
from torch import nn
from clusterdp.train import Trainer
from tests.train.trainings import Noisy, accuracy, held_out

net = nn.Linear(16, 3)
trainer = Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), [accuracy])
if len(sys.argv) > 1:
    import os, signal
    trainer.callbacks.on_epoch.append(lambda trainer, row: os.kill(os.getpid(), signal.SIGTERM))
history = trainer.fit(Noisy(), held_out(), epochs=3)
print(history)
trainer.evaluate("no data")
"""


@pytest.mark.slow
def test_plain_trainer_script_is_stopped_saved_and_resumed(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    root = str(Path(__file__).resolve().parents[2])
    env = {"PATH": os.defpath, "PYTHONPATH": root, "CLUSTERDP_RUN_DIR": str(tmp_path / "run"), "OMP_NUM_THREADS": "1"}

    def python(*words: str) -> Any:
        return subprocess.run([sys.executable, str(file), *words], env=env, capture_output=True, text=True, timeout=120)

    stopped = python("stop")
    assert stopped.returncode == 75, stopped.stderr
    assert stopped.stderr.endswith("run it again to go on.\n")
    done = python()
    assert done.stdout.splitlines()[-4].split() == [
        "epoch",
        "step",
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
        "seconds",
        "samples/s",
    ]
    assert done.stdout.splitlines()[-1].split()[:2] == ["3", "18"]
    assert done.stderr == "clusterdp: data: a str is not a data set, tensors or batches. Pass one of these.\n"


class Pair:
    """Two networks that train in turns: a step that is not the usual one."""

    def __call__(self, trainer: Trainer, batch: Any) -> dict[str, torch.Tensor]:
        x, _ = batch
        loss = trainer.model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
                parameter.grad = None
        trainer.scores.add(batch, loss)
        return {"loss": loss, "norm": sum(p.norm() for p in trainer.model.parameters())}  # type: ignore[dict-item]


WHAT_TRAIN_SAYS: dict[str, tuple[dict[str, Any], Any]] = {
    "recompute": ({"recompute": ["Block"]}, lambda t: "forward" in vars(t.net.blocks[0])),
    "compile": ({"compile": {"backend": "eager"}}, lambda t: t.net._compiled_call_impl is not None),
    "sync_batchnorm": ({"sync_batchnorm": True}, lambda t: type(t.net.norm) is not nn.BatchNorm1d),
    "fsdp": ({"strategy": "fsdp"}, lambda t: all(isinstance(p, DTensor) for p in stepped_on(t))),
    "dp": ({"strategy": "dp"}, lambda t: isinstance(t.model, nn.DataParallel)),
    "ddp": ({}, lambda t: t.model is t.net),
    "O2": ({"amp": {"level": "O2"}}, lambda t: t.net.head.weight.dtype == torch.float16 and t.amp.masters),
}


@pytest.mark.parametrize("what", WHAT_TRAIN_SAYS)
def test_train_options_apply_on_a_single_rank(job: JobHandle, what: str) -> None:
    options, heeded = WHAT_TRAIN_SAYS[what]
    handle = JobHandle(WorkerSettings(train=from_plain(TrainConfig, options)), job.group, job.stop_signal, "1.0")
    net = techniques.Net(norm=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005)
    trainer = Trainer(net, nn.MSELoss(), optimizer, job=handle)
    assert heeded(trainer)
    history = trainer.fit(techniques.batches(), epochs=2)
    assert history[1]["loss"] < history[0]["loss"]
    assert {parameter.dtype for parameter in stepped_on(trainer)} == {torch.float32}
    Trainer(net, nn.MSELoss(), optimizer, job=handle)


def test_second_o2_trainer_requires_its_own_amp(job: JobHandle) -> None:
    handle = JobHandle(WorkerSettings(train=TrainConfig(amp=AmpConfig(level="O2"))), job.group, job.stop_signal, "1.0")
    linear(handle)
    with pytest.raises(ConfigError, match="Make another Amp for the other one"):
        linear(handle)


def stepped_on(trainer: Trainer) -> list[torch.Tensor]:
    assert trainer.optimizer is not None
    return [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]


@pytest.mark.parametrize(("scale", "stepped"), [(2.0**127, 0), (8.0, 3)])
def test_schedule_waits_while_the_amp_skips_steps(job: JobHandle, scale: float, stepped: int) -> None:
    """A loss of 2 and more overflows, because the largest fp32 is below 2**128."""
    net = nn.Linear(trainings.FEATURES, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    batches = [(torch.ones(2, trainings.FEATURES), torch.full((2, 1), 9.0))] * 3
    amp = Amp("fp16", "cpu", loss_scale=scale)
    Trainer(net, nn.MSELoss(), optimizer, scheduler=scheduler, job=job, amp=amp).fit(batches, epochs=1)
    assert scheduler.last_epoch == stepped


@pytest.mark.parametrize("cast_before", [False, True])
def test_trainer_with_its_own_amp_casts_the_model_once(job: JobHandle, cast_before: bool) -> None:
    amp, net = Amp("O3", "cpu"), nn.Linear(trainings.FEATURES, 3)
    if cast_before:
        amp.cast(net)
    trainer = Trainer(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), job=job, amp=amp)
    assert (net.weight.dtype, trainer.predict(held()).dtype) == (torch.float16, torch.float32)
    assert len(net._forward_pre_hooks) == 1


def test_trainer_wraps_in_ddp_and_refuses_a_compiled_model_without_ddp(tmp_path: Path) -> None:
    with running(tmp_path, programs.with_job, ENTRY + "wrapped", {}, size=2) as ranks:
        first, second = ranks.answers
    assert first == second
    *answers, said = first
    assert answers == ["torch.float16", "DistributedDataParallel", "Sequential"]
    assert "OptimizedModule without DistributedDataParallel in it, which each of 2 ranks would train alone." in said
    assert "train.compile: true" in said


def test_trainer_trains_with_a_custom_step(job: JobHandle) -> None:
    trainer = Trainer(nn.Linear(trainings.FEATURES, 1), job=job, step=Pair())
    history = trainer.fit(trainings.Noisy(), epochs=2, batch_size=16)
    assert history[1]["loss"] < history[0]["loss"]


def test_numbers_of_a_custom_step_are_averaged_in_the_history(job: JobHandle) -> None:
    def step(trainer: Trainer, batch: Any) -> dict[str, Any]:
        x, _ = batch
        return {"loss": trainer.model(x).square().mean(), "first": x[0, :1], "samples": len(x), "kind": "odd"}

    trainer = Trainer(nn.Linear(trainings.FEATURES, 1), job=job, step=step)
    history = trainer.fit(held(), epochs=2, batch_size=50, shuffle=False)
    assert list(history[0]) == ["epoch", "step", "loss", "first", "samples"]
    x = held().tensors[0]
    with torch.no_grad():
        assert history["loss"] == [pytest.approx(float(trainer.net(x).square().mean()))] * 2
    assert history[0]["first"] == pytest.approx(float(50 * x[0, 0] + x[50, 0]) / 51)
    assert history[0]["samples"] == pytest.approx((50 * 50 + 1) / 51)


def of_mapping(trainer: Trainer, batch: Any) -> Any:
    outputs = trainer.model(batch["x"].flip(1))
    return nn.functional.cross_entropy(outputs, batch["y"]), outputs, batch["y"]


def test_predict_uses_a_custom_forward(job: JobHandle) -> None:
    x, y = held().tensors
    trainer = linear(job)
    straight, flipped = trainer.predict(x), trainer.predict(x.flip(1))
    trainer.forward = of_mapping
    assert torch.equal(trainer.predict({"x": x, "y": y}), flipped)
    assert torch.equal(trainer.predict(x, forward=lambda trainer, batch: trainer.model(batch[0])), straight)
    trainer.forward = lambda trainer, batch: of_mapping(trainer, batch)[0]
    with pytest.raises(ConfigError, match=r"^predict: the Trainer's forward returned the loss alone\. Return"):
        trainer.predict({"x": x, "y": y})


def test_predict_to_files_needs_data_of_known_length(job: JobHandle, tmp_path: Path) -> None:
    trainer = linear(job)
    with pytest.raises(ConfigError, match="predict: to= needs data of known length"):
        trainer.predict([held().tensors], to=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (lambda size, number: torch.zeros(size + 9, 2), "predict: the model gave more rows than the 51 samples."),
        (lambda size, number: torch.zeros(1, 2), "predict: the model gave 3 rows for 51 samples."),
        (lambda size, number: torch.zeros(size, 1 + number), "predict: the outputs of two batches do not fit: "),
        (lambda size, number: (torch.zeros(size), torch.zeros(1)), "predict: the model gave more rows than"),
    ],
)
def test_predict_to_files_refuses_outputs_of_another_shape(
    job: JobHandle, tmp_path: Path, outputs: Any, said: str
) -> None:
    numbers = iter(range(9))
    with pytest.raises(ConfigError) as caught:
        linear(job).predict(
            held(), batch_size=20, to=tmp_path, forward=lambda trainer, batch: outputs(len(batch[0]), next(numbers))
        )
    assert str(caught.value).startswith(said)
    assert not (tmp_path / "form.json").exists()  # without it, load_predictions() reads nothing


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes yet")
def test_predict_error_for_data_without_targets_has_a_note_with_the_remedy(job: JobHandle) -> None:
    trainer = linear(job)
    trainer.forward = of_mapping
    with pytest.raises(KeyError) as caught:
        trainer.predict({"x": held().tensors[0]})
    assert caught.value.__notes__ == [  # type: ignore[attr-defined]
        "predict asked the Trainer's forward. For data without targets: predict(forward=...)."
    ]


@pytest.mark.parametrize("watched", ["val_loss", "loss"])
def test_reduce_lr_on_plateau_gets_the_loss_of_each_epoch(job: JobHandle, watched: str) -> None:
    trainer = linear(job)
    assert trainer.optimizer is not None
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(trainer.optimizer, patience=0, threshold=0.9)
    trainer = Trainer(trainer.net, nn.CrossEntropyLoss(), trainer.optimizer, job=job, scheduler=scheduler)
    history = trainer.fit(trainings.Noisy(), held() if watched == "val_loss" else None, epochs=3)
    assert scheduler.best == history[0][watched]
    assert history["lr"] == pytest.approx([0.1, 0.01, 0.001])  # no epoch after the first is so much better


class Stream(torch.utils.data.IterableDataset[Any]):
    """Gives batches."""

    def __iter__(self) -> Iterator[Any]:
        return iter(DataLoader(held(), 17))


class Pile(torch.utils.data.Dataset[Any]):
    """Gives batches by their number."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return held()[17 * index : 17 * (index + 1)]


@pytest.mark.parametrize("batches", [Stream(), Pile()])
def test_batch_size_none_takes_batches_of_the_data_set(job: JobHandle, batches: Any) -> None:
    trainer = linear(job)
    assert trainer.evaluate(batches, batch_size=None) == trainer.evaluate(held(), batch_size=17)
    assert torch.equal(trainer.predict(batches, batch_size=None), trainer.predict(held(), batch_size=17))
    trainer.fit(batches, batches, batch_size=None, epochs=2)
    assert trainer.history["step"] == [3, 6]
    assert trainer.history[1]["val_loss"] == trainer.evaluate(held(), batch_size=17)["loss"]


def test_repeated_fit_continues_epochs_and_steps_of_the_first_fit(job: JobHandle) -> None:
    net = nn.Linear(trainings.FEATURES, 3)
    trainer = Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job)
    trainer.fit(trainings.Noisy(), epochs=1)
    trainer.fit(trainings.Noisy(), epochs=3)
    assert trainer.history["epoch"] == [1, 2, 3]
    assert trainer.history["step"] == [6, 12, 18]


def doubled(samples: list[Any]) -> Any:
    """Draws, too, as MixUp does."""
    torch.rand(1)
    x, y = torch.utils.data.default_collate(samples)
    return x * 2, y


ANY_ORDER = torch.utils.data.WeightedRandomSampler([1.0] * trainings.SAMPLES, trainings.SAMPLES)


@pytest.mark.parametrize(
    ("options", "evaluated"),
    [
        ({"sampler": ANY_ORDER, "drop_last": True}, {}),
        ({"seed_samples": False}, {}),
        ({"collate_fn": doubled}, {"collate_fn": doubled}),
        ({"collate_fn": doubled, "val_options": {"collate_fn": None, "batch_size": 7}}, {"batch_size": 7}),
    ],
)
def test_validation_uses_the_collate_fn_but_not_the_sampler_of_training(
    job: JobHandle, options: dict[str, Any], evaluated: dict[str, Any]
) -> None:
    trainer = linear(job)
    trainer.fit(trainings.Noisy(), held(), **options)
    streams = torch.get_rng_state()
    assert trainer.history[0]["val_loss"] == trainer.evaluate(held(), **evaluated)["loss"]
    assert torch.equal(torch.get_rng_state(), streams), "the training's random numbers were drawn from"


def test_fit_uses_a_given_validation_dataloader_unchanged(job: JobHandle) -> None:
    trainer, made = linear(job), DataLoader(held(), 32)
    trainer.fit(trainings.Noisy(), made, collate_fn=doubled, drop_last=True)
    assert trainer.history[0]["val_loss"] == trainer.evaluate(made)["loss"]


def linear(job: JobHandle) -> Trainer:
    net = nn.Linear(trainings.FEATURES, 3)
    return Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job)


def test_predict_copies_to_the_host_after_the_next_forward(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    to_host = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: fetched.append(tensor) or to_host(tensor))
    seen = []
    net = nn.Linear(trainings.FEATURES, 3)
    net.register_forward_hook(lambda *_: seen.append(len(fetched)))
    assert len(Trainer(net, job=job).predict(held(), batch_size=20)) == 51
    assert seen == [0, 1, 2]
    assert not any(tensor.requires_grad for tensor in fetched)


@pytest.mark.parametrize("val", [3, "no data"])
def test_unusable_validation_data_is_refused_before_the_first_step(job: JobHandle, val: Any) -> None:
    trainer = linear(job)
    with pytest.raises(ConfigError, match="is not a data set"):
        trainer.fit(held(), val)
    assert trainer.loop is None


def batches_of(data: TensorDataset) -> Iterator[Any]:
    yield from DataLoader(data, 17)


def test_generator_of_batches_is_evaluated_and_predicted_like_its_data_set(job: JobHandle) -> None:
    trainer, data = linear(job), held()
    assert trainer.evaluate(batches_of(data)) == trainer.evaluate(data, batch_size=17)
    assert torch.equal(trainer.predict(batches_of(data)), trainer.predict(data, batch_size=17))
    trainer.fit(batches_of(data), batches_of(data))
    assert trainer.history[0]["val_loss"] == trainer.evaluate(data, batch_size=17)["loss"]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda t: t.fit(batches_of(held()), epochs=3), "^loader: a generator is read once, and 3 epochs read it 3"),
        (lambda t: t.fit(held(), batches_of(held()), epochs=3), "^val: a generator is read once, and 3 epochs read it"),
        (lambda t: t.evaluate(iter(())), "^evaluate: the data gave no batch. .* an iterator that has been read"),
        (lambda t: t.predict(iter(())), "^predict: the data gave no batch"),
        (lambda t: t.evaluate(torch.utils.data.Subset(held(), [])), "^evaluate: the data set is empty. Give it"),
        (lambda t: t.predict(torch.ones(0, 3)), "^predict: the data set is empty"),
        (lambda t: t.fit(held(), torch.utils.data.Subset(held(), [])), "^val: the data set is empty"),
        (lambda t: t.fit(TensorDataset(torch.ones(4, 3))), "a batch is a list of 1; .* Pass forward="),
        (lambda t: t.evaluate([1.5]), "a batch is a float"),
        (lambda t: t.fit(DataLoader(held()), shuffle=True), "shuffle: is an option of the loader"),
        (lambda t: t.evaluate(held(), sampler=range(3)), "sampler: evaluate looks at each sample once. Pass a Subset"),
        (lambda t: Trainer(t.net, job=t.job, metrics={"a": 3}), r"metrics\.a: a int is neither"),
        (lambda t: Trainer(t.net, job=t.job, state={"model": t.net}), r"state\.model: the Trainer keeps its own"),
        (lambda t: Trainer(t.net, job=t.job, scheduler_every="week"), "scheduler_every: 'week'"),
        (lambda t: Trainer(t.net, nn.CrossEntropyLoss(), job=t.job).fit(held()), "there is no optimizer to step"),
        (lambda t: Trainer(t.net, nn.CrossEntropyLoss(reduction="none"), job=t.job).evaluate(held()), "shape .32,."),
        (lambda t: Trainer(nn.Flatten(0), job=t.job).predict(held()), "gave 816 rows for 51 samples"),
    ],
)
def test_invalid_trainer_data_and_options_are_refused(job: JobHandle, use: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        use(linear(job))


def held() -> TensorDataset:
    return trainings.held_out()


def test_trainer_summary_counts_all_and_trained_parameters(job: JobHandle, capfd: pytest.CaptureFixture[str]) -> None:
    net = trainings.Net()
    net.stem.weight.requires_grad_(False)
    text = Trainer(net, job=job).summary(torch.ones(2, trainings.FEATURES))
    assert text in capfd.readouterr().out
    assert text.splitlines()[2].split() == ["norm", "BatchNorm1d", "(2,", "128)", "256", "1.02", "kB"]
    assert text.splitlines()[-2] == "19,331 parameters, 17,283 of them trained; 78.4 kB with buffers"


class Tied(nn.Module):
    """Two inputs, a parameter of its own, a shared weight and a shared module."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.words.weight
        self.mix = nn.Linear(4, 4)
        self.again = self.mix
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, word: torch.Tensor, more: torch.Tensor) -> Any:
        return self.head(self.again(self.mix(self.words(word)) + more)) * self.scale


def test_trainer_summary_rows_add_up_and_mark_shared_weights(job: JobHandle) -> None:
    *rows, total, _ = Trainer(Tied(), job=job).summary().splitlines()
    numbers = {row.split()[0]: re.split("  +", row)[-2] for row in rows[1:]}
    assert numbers == {"(model)": "1", "words": "40", "head": "0", "mix": "20", "again": "0"}
    assert total.startswith("61 parameters")
    assert "Linear (shares words)" in rows[3]
    assert "Linear (shares mix)" in rows[5]


@pytest.mark.parametrize("form", [tuple, list, dict])
def test_trainer_summary_takes_the_inputs_of_a_model_with_several(job: JobHandle, form: Any) -> None:
    inputs = {"word": torch.zeros(3, 2, dtype=torch.int64), "more": torch.ones(3, 2, 4)}
    text = Trainer(Tied(), job=job).summary(inputs if form is dict else form(inputs.values()))
    assert "(3, 2, 10)" in text.splitlines()[1]


def test_trainer_summary_takes_a_shape_without_the_batch_instead_of_a_sample(job: JobHandle) -> None:
    trainer = Trainer(nn.Bilinear(2, 3, 4), job=job)
    assert "(1, 4)" in trainer.summary(input_shape=[(2,), (3,)])
    assert "(1, 5)" in Trainer(nn.Linear(2, 5), job=job).summary(input_shape=(2,))
    with pytest.raises(ConfigError, match="both given"):
        trainer.summary(torch.ones(1), input_shape=(2,))


@pytest.mark.parametrize(("make", "states"), [(torch.optim.Adam, 2), (torch.optim.SGD, 0), (torch.optim.Adagrad, 1)])
def test_trainer_summary_shows_the_memory_of_gradients_optimizer_and_activations(
    job: JobHandle, make: Any, states: int
) -> None:
    net = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Sigmoid(), nn.Linear(100, 1, bias=False))
    last = Trainer(net, None, make(net.parameters(), lr=0.1), job=job).summary(torch.ones(5, 100)).splitlines()[-1]
    memory = "a step adds gradients 40.4 kB, optimizer {}, activations of this batch 4 kB"  # the input, and sigmoid's
    assert last == memory.format({2: "80.8 kB", 0: "0 B", 1: "40.4 kB"}[states])


def test_signal_during_predict_stops_the_run(job: JobHandle) -> None:
    from clusterdp.train import Stopped

    trainer = Trainer(nn.Linear(trainings.FEATURES, 3), job=job)

    class Slow(trainings.Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__getitem__(index)

    with job.stop_signal.install(), pytest.raises(Stopped):
        trainer.predict(Slow(), batch_size=1)


@pytest.mark.parametrize("model", ["parts", "forward", "wrapped", "hand"])
def test_custom_step_on_model_parts_gives_all_ranks_the_same_weights(tmp_path: Path, model: str) -> None:
    _, (end, other) = trained(tmp_path / "gan", 2, entry="gan", model=model)
    assert end["weights"] == other["weights"]
    assert end["history"] == other["history"]


@pytest.mark.parametrize(
    ("model", "size", "fault"),
    [
        pytest.param("parts", 2, ["SIGTERM", 14, 1], id="parts, preempted"),
        pytest.param("parts", 3, ["SIGKILL", 18, 0], id="parts, killed", marks=pytest.mark.slow),
        pytest.param("forward", 2, ["SIGKILL", 14, 1], id="forward, killed", marks=pytest.mark.slow),
    ],
)
def test_preempted_or_killed_gan_equals_the_uninterrupted_one(
    tmp_path: Path, model: str, size: int, fault: list[Any]
) -> None:
    _, whole = trained(tmp_path / "whole", size, entry="gan", model=model)
    run, resumed = trained(tmp_path / "resumed", size, fault, entry="gan", model=model)
    assert "restored" in run.events
    assert resumed == whole


def test_loop_calling_only_parts_of_a_ddp_model_fails_with_the_remedy(tmp_path: Path) -> None:
    with running(tmp_path, programs.with_job, ENTRY + "parts_of_ddp", {}, size=2) as ranks:
        for error, at_once in ranks.answers:
            assert at_once
            assert error.startswith("model: its parts were called, and never the model itself")
            assert "job.wrap(nn.ModuleList([generator, discriminator]))" in error
    assert "per_rank" not in ranks.log


def test_loop_reports_loaders_with_all_samples_on_every_rank(tmp_path: Path) -> None:
    with running(tmp_path, programs.with_job, ENTRY + "reports_of_loaders", {}, size=2) as ranks:
        batches, others = ranks.answers
    assert batches == others
    parts = ranks.rank_log(0).split("<")[1:]
    reported = [part.split(">")[0] for part in parts if "each of the 2 ranks trains on all samples" in part]
    assert reported == ["shuffled", "in order", "iterable", "list", "stream", "reader"]
    assert ranks.log.count("job.loader(data, batch_size) deals them out") == len(reported)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2 * trainings.FEATURES, 3)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(torch.cat([x, z], 1))
        return out


def two_inputs(job: JobHandle, name: str = "") -> Trainer:
    torch.manual_seed(0)
    net = TwoInputs()
    return Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job, name=name)


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_nested_inputs_are_spread_over_the_arguments_of_the_model(job: JobHandle, form: Any) -> None:
    x, y = held().tensors
    batch = ({"x": x, "z": 2 * x} if form is dict else form([x, 2 * x]), y)
    flat = two_inputs(job, "flat")
    nested = two_inputs(job, "nested")
    assert nested.fit([batch], [batch]).rows == flat.fit([(x, 2 * x, y)], [(x, 2 * x, y)]).rows
    assert torch.equal(nested.predict([batch]), flat.predict([(x, 2 * x, y)]))


def test_list_stays_the_input_of_a_model_with_one_argument(job: JobHandle) -> None:
    class Sum(nn.Linear):
        def forward(self, parts: Any) -> torch.Tensor:  # type: ignore[override]
            return super().forward(parts[0] + parts[1])

    net = Sum(trainings.FEATURES, 3)
    trainer = Trainer(net, nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1), job=job)
    x, y = held().tensors
    assert len(trainer.fit([((x, x), y)])) == 1


def test_wrong_number_of_model_inputs_is_refused_with_a_remedy(job: JobHandle) -> None:
    x, y = held().tensors
    trainer = two_inputs(job)
    with pytest.raises(
        ConfigError, match=r"TwoInputs.forward\(\) takes \(x: .*has 1 \(Tensor\) before.*fit\(\(x1, x2, y\)\)"
    ):
        trainer.fit((x, y))
    assert len(trainer.fit((x, x, y))) == 1
    with pytest.raises(EntryError, match="not the data of the first fit"):
        trainer.fit((x, y), epochs=2)


@pytest.mark.parametrize(("size", "fault"), [(2, ["SIGTERM", 4, 1])])
def test_lbfgs_on_ranks_equals_one_rank_and_resumes_exactly(tmp_path: Path, size: int, fault: Any) -> None:
    _, (alone,) = trained(tmp_path / "alone", 1, entry="lbfgs")
    _, (whole, other) = trained(tmp_path / "whole", size, entry="lbfgs")
    run, resumed = trained(tmp_path / "resumed", size, fault, entry="lbfgs")
    assert "restored" in run.events
    assert resumed == [whole, other]
    assert whole["weights"] == other["weights"]
    assert whole["loss"] == pytest.approx(alone["loss"], rel=1e-3)
    assert whole["loss"][-1] < 0.5 * whole["loss"][0]


def test_lbfgs_with_clipping_is_refused(job: JobHandle) -> None:
    net = nn.Linear(trainings.FEATURES, 3)
    optimizer = torch.optim.LBFGS(net.parameters())
    with pytest.raises(ConfigError, match="optimizer: LBFGS evaluates the model several times in a step"):
        Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, clip_norm=1.0).fit(held())


def test_type_error_within_the_model_is_not_reported_as_wrong_inputs(job: JobHandle) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return len(3)  # type: ignore[arg-type,return-value]

    trainer = Trainer(Wrong(3, 3), nn.CrossEntropyLoss(), job=job)
    with pytest.raises(TypeError, match="has no len"):
        trainer.evaluate(held())


@pytest.mark.parametrize("kept", [True, False])
def test_fit_after_an_interrupt_repeats_the_open_epoch_and_keeps_the_history(job: JobHandle, kept: bool) -> None:
    """With a run folder, but before its first save; and without one."""
    if not kept:
        job = JobHandle(WorkerSettings(), job.group, job.stop_signal, "1.0")
    loader: Any = job.loader(held(), 17)

    def interrupt(trainer: Trainer, values: Any) -> None:
        if interrupts and trainer.loop is not None and trainer.loop.step == 4:
            interrupts.clear()
            raise KeyboardInterrupt

    interrupts = [True]
    net = nn.Linear(trainings.FEATURES, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = Trainer(net, nn.CrossEntropyLoss(), optimizer, job=job, on_step=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(loader, epochs=3)
    assert job.metrics.sinks == []
    history = trainer.fit(loader, epochs=3)
    assert history["epoch"] == [1, 2, 3]
    assert history["step"] == [3, 7, 10]  # a step of the second epoch was done before it began anew
    assert trainer.loop is not None
