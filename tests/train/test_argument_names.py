"""What people write who come from another library: one line that says how it is written here."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, RandomSampler

import clusterdp
from clusterdp.errors import ConfigError
from clusterdp.train import (
    Amp,
    BatchSize,
    Ema,
    Group,
    History,
    JobHandle,
    ModelParallel,
    NanGuard,
    Prefetcher,
    ResumableSampler,
    SeededDataset,
    Shards,
    StopSignal,
    Swa,
    Tracer,
    Trainer,
    early_stopping,
    even_batches,
    find_workers,
    gradient_sync,
    in_parts,
    keep_best,
    load_predictions,
    own_job,
    place,
    recompute,
    seed_everything,
    settle_buckets,
    sync_batchnorm,
    warmup_cosine,
    windows,
)
from clusterdp.train.argument_names import (
    INSTEAD,
    MEANT,
    METHODS,
    NoSuchMethod,
    arguments_of,
    check_arguments,
    checked,
)
from clusterdp.train.data.make_loader import LOADER
from tests.train.foreign_words import LIBRARIES

X, Y = torch.randn(8, 3), torch.arange(8) % 2
DATA = (X, Y)
TABLE = Path(__file__).parents[1] / "golden/foreign_words.txt"


def trainer(job: JobHandle, **changes: Any) -> Trainer:
    net = nn.Linear(3, 2)
    parts: dict[str, Any] = {"model": net, "loss": nn.CrossEntropyLoss()}
    return Trainer(**{**parts, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "job": job, **changes})


def main(job: JobHandle) -> None: ...


OPTIMIZER = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


class EarlyStopping:
    """Of another library."""


class OneArgument:
    def on_end(self) -> None: ...


class Timm:
    """Its schedulers want to know the epoch."""

    def step(self, epoch: int) -> None: ...


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"callback": []}, "Trainer: 'callback' is not an argument here. Write Trainer(callbacks=[...])"),
        ({"max_epochs": 3}, "Trainer: 'max_epochs' is not an argument here. Write fit(epochs=...)."),
        ({"epochs": 3}, "Trainer: 'epochs' is not an argument here. It is one of fit()."),
        ({"precision": 16}, "Trainer: 'precision' is not an argument here. Write Trainer(amp=...)"),
        ({"devices": 4}, "Trainer: 'devices' is not an argument here. The config has it, as resources."),
        ({"clip_nrom": 1}, "Trainer: 'clip_nrom' is not an argument here. Did you mean clip_norm?"),
        (
            {"qqq": 1},
            "Trainer: 'qqq' is not an argument here. There are: model, loss, optimizer, metrics, job, amp, acc",
        ),
        ({"model": nn.Linear}, "model: Linear is a class. Pass a torch.nn.Module."),
        ({"optimizer": "adam"}, "optimizer: is the word 'adam'. Pass an object, such as torch.optim.Adam(mod"),
        ({"optimizer": torch.optim.Adam}, "optimizer: Adam is a class. Pass an object, such as torch.optim.Adam(mod"),
        ({"loss": "mse"}, "loss: is the word 'mse'. Pass a function of (outputs, targets), such as torch.nn.MSE"),
        ({"loss": nn.MSELoss}, "loss: MSELoss is a class. Pass a function of (outputs, targets)"),
        (
            {"metrics": ["accuracies"]},
            "metrics: 'accuracies' is not a name here; there are accuracy, acc, top_5",
        ),
        ({"metrics": {"f": "f1"}}, "metrics: 'f1' is not a name here; there are accuracy"),
        ({"metrics": 3}, "metrics.int: a int is neither a name, a function of (outputs, targets) nor"),
        ({"scheduler": "cosine"}, "scheduler: is the word 'cosine'. Pass an object of torch.optim.lr_scheduler"),
        ({"scheduler": StepLR}, "scheduler: StepLR is a class. Pass an object of torch.optim.lr_scheduler"),
        ({"scheduler": ReduceLROnPlateau(OPTIMIZER, "max")}, "scheduler: ReduceLROnPlateau(mode='max') cannot look at"),
        ({"scheduler": Timm()}, "scheduler: Timm.step() wants arguments. Call it in on_epoch="),
        (
            {"on_epoch": [EarlyStopping()]},
            "on_epoch: a EarlyStopping is not a function. Pass one; see clusterdp.",
        ),
        ({"optimizer": OPTIMIZER}, "optimizer: its 2 parameters are not of this model, which it would not train."),
        ({"metrics": [lambda outputs, targets: 0]}, "metrics: a lambda has no name. Give it one: metrics={"),
        ({"on_step": EarlyStopping}, "on_step: a EarlyStopping is not a function."),
        ({"on_epoch": [lambda row: 0]}, "on_epoch: <lambda>(row) cannot be called with (trainer, row)."),
        ({"on_step": lambda values: 0}, "on_step: <lambda>(values) cannot be called with (trainer, values)."),
        ({"callbacks": [OneArgument()]}, "callbacks: OneArgument: on_end() cannot be called with (trainer)."),
        ({"step": lambda batch: {}}, "step: <lambda>(batch) cannot be called with (trainer, batch)."),
        ({"forward": lambda batch: {}}, "forward: <lambda>(batch) cannot be called with (trainer, batch)."),
        ({"metrics": {"a": lambda outputs: 0}}, "metrics.a: <lambda>(outputs) cannot be called with (outputs, target"),
        ({"accumulate": "2"}, "accumulate: is the word '2'. Pass a whole number or None."),
    ],
)
def test_wrong_argument_of_trainer_is_a_config_error_with_its_name(
    job: JobHandle, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer(job, **changes)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda t: t.fit(DATA, validation_data=DATA),
            "fit: 'validation_data' is not an argument here. Write fit(tra",
        ),
        (
            lambda t: t.fit(DATA, validation_split=0.1),
            "fit: 'validation_split' is not an argument here. Split the d",
        ),
        (lambda t: t.fit(DATA, verbose=0), "fit: 'verbose' is not an argument here. A line an epoch is printed"),
        (lambda t: t.fit(DATA, accumulate=2), "fit: 'accumulate' is not an argument here. It is one of Trainer()."),
        (lambda t: t.fit([DATA], num_worker=2), "fit: 'num_worker' is not an argument here. Did you mean num_workers?"),
        (
            lambda t: t.fit(DATA, DATA, val_options={"bach_size": 2}),
            "val_options: 'bach_size' is not an argument here. Did",
        ),
        (
            lambda t: t.fit(t.net, train_dataloaders=[DATA]),
            "fit: 'train_dataloaders' is not an argument here. Write fit(t",
        ),
        (lambda t: t.fit(t.net, [DATA]), "data: a Linear is a model, and the Trainer has one. Pass data."),
        (lambda t: t.fit(X, Y), "fit: inputs and targets are one argument. Write fit((x, y), (x_val, y_val))."),
        (lambda t: t.fit(X.numpy(), Y.numpy()), "fit: inputs and targets are one argument."),
        (lambda t: t.evaluate(X, Y), "evaluate: inputs and targets are one argument. Write evaluate((x, y))."),
        (lambda t: t.evaluate(DATA, epochs=2), "evaluate: 'epochs' is not an argument here. It is one of fit()."),
        (
            lambda t: t.predict(X, steps_per_epoch=3),
            "predict: 'steps_per_epoch' is not an argument here. Write fit(limit_batches=...)",
        ),
        (
            lambda t: t.job.loader(DATA, 4, suffle=True),
            "loader: 'suffle' is not an argument here. Did you mean shuffle?",
        ),
        (lambda t: t.fit(DATA, batch_size=0), "loader: batch_size should be a positive integer value, but got batch_s"),
        (lambda t: t.evaluate(DATA, batch_size="4"), "batch_size: is the word '4'. Pass a whole number or None."),
        (lambda t: t.fit(DATA, epochs="3"), "epochs: is the word '3'. Pass a whole number or None."),
        (
            lambda t: t.fit(DATA, DATA, 3),
            "trainer.fit: too many positional arguments. Write trainer.fit(train), a",
        ),
        (lambda t: t.fit([[x, 1] for x in X]), "Trainer: the targets of a batch are 1, as of one sample. Lists and"),
        (lambda t: t.job.wrap(nn.Linear), "model: Linear is a class. Pass a torch.nn.Module."),
        (lambda t: t.job.loader(DataLoader(X), 4), "dataset: a DataLoader has no samples by number. Pass a data set; "),
        (lambda t: t.job.loader(DataLoader, 4), "dataset: a DataLoader has no samples by number. Pass a data set; a "),
        (
            lambda t: t.job.loader(X),
            "job.loader: missing a required argument: 'batch_size'. Write job.loader(datase",
        ),
        (
            lambda t: t.job.loop({}, [DATA]),
            "state: is a list. Pass names and objects, such as {'model': model}.",
        ),
        (
            lambda t: t.job.loop([DATA]),
            "job.loop: missing a required argument: 'state'. Write job.loop(loader, state)",
        ),
        (lambda t: t.job.loop([DATA], {}, max_epochs=3), "job.loop: 'max_epochs' is not an argument here. Write epoc"),
        (lambda t: t.job.loop([DATA], {}, shuffle=True), "job.loop: 'shuffle' is not an argument here. It is one of l"),
        (lambda t: t.job.loop([DATA], {}, epochs="2"), "epochs: is the word '2'. Pass a whole number."),
        (lambda t: t.job.loop([DATA], {}, epochs=2.5), "epochs: is 2.5. Pass a whole number."),
        (lambda t: t.job.loop([DATA], {}, every_s="5m"), "every_s: is the word '5m'. Pass a number or None."),
        (lambda t: t.job.loop([DATA], {}).log(3.0), "loop.log: too many positional arguments. Write loop.log(name=v"),
        (lambda t: t.job.loop([DATA], {}).log({"a": 3}), "loop.log: too many positional arguments. Write loop.log(na"),
        (lambda t: t.job.loop([DATA], {}).log(loss=X), "log: loss has the shape (8, 3). Log a number, such as its me"),
        (lambda t: keep_best(mode="minimum"), "mode: 'minimum' is neither min nor max."),
        (lambda t: early_stopping(patience="3"), "patience: is the word '3'. Pass a whole number."),
        (lambda t: Ema(t.net, "0.9"), "decay: is the word '0.9'. Pass a number."),
        (lambda t: t.fit(DATA, prefetch_factor=2), "loader: prefetch_factor option could only be specified in multip"),
        (lambda t: t.fit(DATA, batch_size=None, drop_last=True), "loader: batch_size=None option disables auto-batch"),
    ],
)
def test_wrong_argument_of_fit_evaluate_predict_or_loader_is_a_config_error(
    job: JobHandle, use: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        use(trainer(job))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda t: clusterdp.launch(main, 2, "runs/a"),
            "launch: too many positional arguments. Write launch(function)",
        ),
        (lambda t: clusterdp.launch(ranks=2), "launch: missing a required argument: 'function'. Write launch(fun"),  # type: ignore[call-arg]
        (lambda t: clusterdp.launch(main, run_dir=3), "run_dir: is 3. Pass a text or a path or None."),
        (lambda t: t.summary(3), "sample: a int without tensors. Pass a batch, or input_shape=(3, 32, 32)."),
        (lambda t: t.summary(X.numpy()), "sample: a ndarray without tensors. Pass a batch, or input_shape="),
        (lambda t: t.summary((X, Y)), "summary: the model cannot be called with this sample: Linear.forward() tak"),
        (lambda t: t.summary(input_shape=3), "input_shape: 3 is not the shape of a sample. Write e.g. (3, 32, 32)"),
        (lambda t: t.summary(input_shape=("3",)), "input_shape: ('3',) is not the shape of a sample. Write e.g. ("),
        (lambda t: t.summary(input_shape=(4,)), "summary: the model cannot be called with this sample: mat1 and ma"),
        (lambda t: t.evaluate(DATA, transform=3), "transform: is 3. Pass a function or None."),
        (
            lambda t: t.job.loader(X, 4, sampler=RandomSampler),
            "sampler: RandomSampler is a class. Pass an object, such",
        ),
        (
            lambda t: t.job.loop([DATA], {}, forget="best"),
            "forget: is the word 'best'. Pass a list of names, such as [",
        ),
        (lambda t: t.job.mean("3"), "mean: a str is not a number or a tensor. Pass one of these."),
        (lambda t: Trainer(t.net, job=3), "job: is 3. Pass the job of main(job) or None."),
        (lambda t: trainer(t.job, on_step=3), "on_step: a int is not a function."),
        (lambda t: trainer(t.job, amp=16), "amp: is 16. Pass a level, such as 'O1' or 'bf16', or an Amp."),
        (
            lambda t: Amp("O1"),  # type: ignore[call-arg]
            "Amp: missing a required argument: 'device'. Write Amp(level, device), and all else by na",
        ),
        (lambda t: Amp("O1", "gpu"), "device: is the word 'gpu'. Pass a device, such as 'cpu' or job.device."),
        (lambda t: t.job.amp.backward(3.0), "loss: is 3.0. Pass a tensor."),
        (lambda t: t.job.amp.step(t.net), "optimizer: is a Linear. Pass an object, such as torch.optim.Adam(mod"),
        (lambda t: BatchSize("32"), "per_rank: is the word '32'. Pass a whole number."),
        (lambda t: BatchSize(32).scaled_lr(0.1, 0), "reference: 0 is less than 1. Use 1 or more; or leave it out."),
        (lambda t: Swa(3, t.net), "model: is 3. Pass a torch.nn.Module."),
        (lambda t: Ema(t.net, amp="O2"), "amp: is the word 'O2'. Pass an Amp, such as job.amp or None."),
        (lambda t: History(3), "rows: is 3. Pass a list or None."),
        (lambda t: History().plot(other=3), "other: is 3. Pass a History, such as that of fit()."),
        (lambda t: ModelParallel(nn.Linear, devices=["cpu"]), "parts: Linear is a class. Pass a torch.nn.Module."),
        (lambda t: NanGuard(t.net, 3), "group: is 3. Pass a Group, such as job.group."),
        (lambda t: Prefetcher("cpu", [DATA]), "device: is a list. Pass a device, such as 'cpu' or job.device."),
        (lambda t: ResumableSampler(None), "dataset: is a NoneType. Pass data with a length or a whole number."),
        (lambda t: ResumableSampler(X, rank="0"), "rank: is the word '0'. Pass a whole number or None."),
        (lambda t: SeededDataset(X, None), "seed: is a NoneType. Pass a whole number."),
        (lambda t: Shards(None), "files: is a NoneType. Pass a pattern, such as 'data/*.tar', or a list of files."),
        (lambda t: StopSignal("60"), "end_time: is the word '60'. Pass a number or None."),
        (lambda t: Tracer(None), "file: is a NoneType. Pass a text or a path."),
        (lambda t: [*even_batches(t.job.group, [DATA])], "group: is a list. Pass a Group, such as job.group."),
        (lambda t: find_workers([DATA], 3), "group: is 3. Pass a Group, such as job.group or None."),
        (lambda t: gradient_sync(True, t.net), "model: is True. Pass a torch.nn.Module."),
        (lambda t: in_parts(t.net, 2), "layers: is a Linear. Pass a torch.nn.Sequential."),
        (
            lambda t: load_predictions("no/folder"),
            "folder: no/folder/form.json: No such file or directory. Name the fo",
        ),
        (lambda t: own_job(3), "own_job: too many positional arguments. Write own_job()."),  # type: ignore[call-arg]
        (
            lambda t: place(t.net, ["cpu"]),
            "devices: is a list. Pass names and devices, such as {'layers.0': 'cuda:0'}.",
        ),
        (lambda t: recompute(t.net, ["Linear"]), "units: is a list. Pass a text."),
        (
            lambda t: seed_everything(1),  # type: ignore[call-arg]
            "seed_everything: missing a required argument: 'rank'. Write seed_everything(se",
        ),
        (lambda t: settle_buckets(nn.Linear), "model: Linear is a class. Pass a torch.nn.Module."),
        (lambda t: sync_batchnorm(None), "model: is a NoneType. Pass a torch.nn.Module."),
        (lambda t: warmup_cosine("3", 4), "warmup: is the word '3'. Pass a whole number."),
        (lambda t: [*windows(iter([DATA]), 2)], "loader: is a list_iterator. Pass a list or a loader."),
        (lambda t: Group.start("nccl"), "place: is the word 'nccl'. Pass a Rendezvous, such as Rendezvous.find()."),
    ],
)
def test_wrong_argument_of_any_public_name_is_a_config_error(job: JobHandle, use: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(trainer(job))
    assert str(caught.value).startswith(said)


def test_right_types_are_checked_once_and_wrong_ones_at_each_call() -> None:
    @checked
    def advance(samples: int) -> int:
        return samples

    for _ in range(2):
        assert advance(4) == 4
        with pytest.raises(ConfigError):
            advance("4")  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            advance(2.5)  # type: ignore[arg-type]
        assert type(advance(2.0)) is int  # type: ignore[arg-type]


def test_arguments_of_other_number_types_are_accepted(job: JobHandle) -> None:
    loop = job.loop([DATA], {}, epochs=numpy.int64(2), every_s=numpy.float32(600), limit_batches=torch.tensor(1))
    assert len([*loop]) == 2
    assert len([*job.loop([DATA], {}, epochs=2.0, name="whole")]) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("monitor", ["val_acc", "val_accuracy"])
def test_wrong_monitor_is_refused_before_the_first_epoch(job: JobHandle, monitor: str) -> None:
    """Without an evaluation, val_accuracy is wrong, too."""
    epochs: list[int] = []
    rules = [early_stopping(monitor, mode="max"), lambda trainer, row: epochs.append(row["epoch"])]
    trained = trainer(job, metrics="accuracy", on_epoch=rules)
    with pytest.raises(ConfigError, match=rf"^monitor: no epoch has a '{monitor}'\. There are: epoch, step, loss, acc"):
        trained.fit(DATA, DATA if monitor == "val_acc" else None)
    assert not epochs


def test_monitor_of_a_column_added_by_a_callback_is_accepted(job: JobHandle) -> None:
    add = lambda trainer, row: row.update(f1=0.5)  # noqa: E731
    assert trainer(job, on_epoch=[add, early_stopping("f1", mode="max")]).fit(DATA)["f1"] == [0.5]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_step_changing_no_parameter_is_a_config_error(job: JobHandle, trains: bool, fused: bool) -> None:
    def step(trainer: Trainer, batch: Any) -> dict[str, Any]:
        loss = trainer.loss(trainer.model(batch[0]), batch[1])
        if trains:
            loss.backward()
        trainer.optimizer.step()
        return {"loss": loss}

    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=fused)
    trained = trainer(job, model=net, optimizer=optimizer, step=step)
    if trains:
        assert trained.fit(DATA, batch_size=2, epochs=2)[-1]["step"] == 8
        return
    with pytest.raises(ConfigError, match=r"^step: 4 steps have changed no parameter\. Call trainer\.amp\.backward"):
        trained.fit(DATA, batch_size=2, epochs=2)


def test_trainer_step_function_returning_none_is_a_config_error(job: JobHandle) -> None:
    with pytest.raises(ConfigError, match=r"^step: returned a NoneType\. Return {name: number}"):
        trainer(job, step=lambda trainer, batch: None).fit(DATA)


def test_custom_forward_may_compute_the_loss_without_targets(job: JobHandle) -> None:
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    coder = trainer(
        job,
        model=net,
        optimizer=optimizer,
        forward=lambda trainer, batch: (trainer.model(batch[0]) - batch[0]).square().mean(),
    )
    assert coder.fit(X, X)[0]["val_loss"] > 0


def test_trainer_accepts_a_single_metric_or_callback_without_a_list(job: JobHandle) -> None:
    def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == targets).float()

    seen: list[float] = []
    trained = trainer(job, metrics=accuracy, on_epoch=lambda trainer, row: seen.append(row["accuracy"]))
    assert trained.fit(DATA, epochs=2)["accuracy"] == seen


def test_remedy_table_for_foreign_arguments_contains_no_own_argument() -> None:
    ours = {*LOADER, *arguments_of(Trainer), *arguments_of(Trainer.fit), *arguments_of(Trainer.predict)}
    assert not ours & MEANT.keys()
    assert {*inspect.signature(DataLoader).parameters} - {"dataset", "batch_size"} < {*LOADER}


def answer(trained: Trainer, word: str, *, is_method: bool) -> str:
    """What becomes of a name of another library: it works here, or the error names ours."""
    if is_method:
        try:
            getattr(trained, word)
        except NoSuchMethod as error:
            return str(error).partition("not a method here. ")[2]
        return "works"
    for call in (Trainer, trained.fit, trained.evaluate, trained.predict):
        if word in inspect.signature(call).parameters or (call == trained.fit and word in LOADER):
            return f"works, in {'Trainer' if call is Trainer else call.__name__}()"  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as caught:
        check_arguments("Trainer", [word], arguments_of(Trainer), {"fit": Trainer.fit})
    return str(caught.value).partition("not an argument here. ")[2]


def test_names_of_eight_libraries_work_or_have_a_remedy(job: JobHandle) -> None:
    """The table is tests/golden/foreign_words.txt."""
    trained = trainer(job)
    lines = []
    for library, (arguments, methods) in LIBRARIES.items():
        for words, is_method in ((arguments, False), (methods, True)):
            for word in words.split():
                found = answer(trained, word, is_method=is_method)
                assert found.startswith("works") or found in {f"{remedy}." for remedy in (*INSTEAD, *METHODS)} | {
                    f"It is one of {name}()." for name in ("fit", "Trainer")
                }, (library, word, found)
                lines.append(f"{library:13} {word + '()' * is_method:28} {found}")
    assert len(lines) > 200
    text = "\n".join(lines) + "\n"
    if os.environ.get("CLUSTERDP_REFRESH"):
        TABLE.write_text(text)
    assert TABLE.read_text() == text


def test_no_such_method_leaves_hasattr_false(job: JobHandle) -> None:
    trained = trainer(job)
    for method in ("compile", "save", "test", "train_on_batch", "load_from_checkpoint", "to"):
        assert not hasattr(trained, method)
        with pytest.raises(ConfigError, match=rf"^Trainer\.{method}: it is not a method here\. .*\.$"):
            getattr(trained, method)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = trained.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("own", ["forward", "step", "loss", "amp"])
def test_trainer_accepts_foreign_optimizer_parameters_with_custom_forward_step_loss_or_amp(
    job: JobHandle, own: str
) -> None:
    loss, net = nn.Linear(2, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    changes: dict[str, Any] = {"forward": lambda t, b: loss(b[0]), "step": lambda t, b: {}}
    if own == "amp":
        net = job.wrap(net)  # type: ignore[assignment]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        changes["amp"] = amp = Amp("O2", job.device)
        amp.cast(net)
        amp.adopt(optimizer)  # which has fp32 copies from here on
    elif own == "loss":
        changes["loss"] = loss
    trainer(job, optimizer=optimizer, model=net, **({own: changes[own]} if own in changes else {}))
