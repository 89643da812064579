"""Trainer: trains a model from a loss, an optimizer and data, with all the pieces of this package.

    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, metrics={"accuracy": accuracy}, job=job)
    history = trainer.fit(train, val, epochs=8, batch_size=32)
    print(trainer.evaluate(test), trainer.predict(test).argmax(1))

Trainer runs on job.loop(), and stops, saves and resumes in the same way: a preempted run ends in the same state as an
uninterrupted run, including the history. If no `job` is passed, as in plain `python train.py`, Trainer uses own_job().
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from clusterdp.checkpoint.state.stateful import unwrap
from clusterdp.errors import ConfigError, EntryError
from clusterdp.train.argument_names import (
    arguments_of,
    check_arguments,
    check_counts,
    check_parts,
    check_trains,
    checked_class,
    no_such_method,
)
from clusterdp.train.data.datasets import evaluation_data, is_same, training_data
from clusterdp.train.data.loader_identity import batch_size_of
from clusterdp.train.data.make_loader import LOADER
from clusterdp.train.job import JobHandle
from clusterdp.train.loop.history import SHAPE, UNTIMED, EpochRow, History, row_line
from clusterdp.train.loop.loop import Loop
from clusterdp.train.optim.accumulation import AS_IT_IS
from clusterdp.train.optim.amp import Amp
from clusterdp.train.optim.ema import Ema
from clusterdp.train.output.progress import Progress, StepLines
from clusterdp.train.output.say import say
from clusterdp.train.parallel import strategy
from clusterdp.train.parallel.gradient_mean import average
from clusterdp.train.parallel.strategy import follow, is_distributed, is_sharded
from clusterdp.train.process.own_job import own_job
from clusterdp.train.trainer import dev_run, evaluation, train_step
from clusterdp.train.trainer.best_model import BestModel
from clusterdp.train.trainer.callbacks import Callbacks, OnEpoch, OnStep
from clusterdp.train.trainer.scores import Metrics, Scores, show_matrices

ARRAYS = (torch.Tensor, numpy.ndarray)


@checked_class
class Trainer:
    """All methods are called on all ranks.

    model: the model, which is wrapped as set in the config's `train`, unless it already is in DDP or FSDP2.
    metrics: name -> function(outputs, targets) -> number or one number per sample; or an object with update(outputs,
    targets), compute() and reset(), such as torchmetrics'; or "accuracy", "top_5_accuracy", "mse" or "mae". A list of
    metrics, or a single one, is also accepted.
    loss(outputs, targets) is a mean over the batch.
    amp: a level of Amp, or an Amp. accumulate: batches per step of the optimizer; 1 with the config's
    train.global_batch_size, which makes every step below one of the optimizer. clip_norm, clip_value: limits for the
    gradients. The defaults of amp, accumulate, clip_norm and clip_value are in the config's `train`.
    scheduler: a scheduler that is stepped with the optimizer, or after each epoch (scheduler_every="epoch").
    ReduceLROnPlateau is stepped after each epoch, with val_loss if there is a validation, and with loss otherwise.
    forward: function(trainer, batch) -> (loss, outputs, targets). step: function(trainer, batch) -> {name: value}, a
    whole training step. The history has the means of these values, unless the step adds to trainer.scores itself. To
    write your own, copy the defaults in train_step. A step may call any module of a model that is not in DDP yet,
    and several optimizers: the gradients are averaged over the ranks at the end of each backward pass.
    on_step(trainer, values): called after each step. on_epoch(trainer, row): called after each epoch. A stop waits
    until the functions after an epoch are done, including their evaluations. callbacks: functions as in on_epoch, and
    objects with methods of other moments, whose state is saved: see clusterdp.train.trainer.callbacks.
    state: more state to save, by name.
    wrap: options of job.wrap(), which are arguments of DistributedDataParallel.
    name: a name for this phase, if the program trains more than once (see Phases). Each Trainer has its own position,
    history and best model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., torch.Tensor] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        metrics: Metrics = (),
        *,
        job: JobHandle | None = None,
        amp: str | Amp | None = None,
        accumulate: int | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        scheduler: Any = None,
        scheduler_every: str = "step",
        forward: Callable[..., Any] = train_step.forward,
        step: Callable[..., Mapping[str, Any]] = train_step.step,
        on_step: Sequence[OnStep] = (),
        on_epoch: Sequence[OnEpoch] = (),
        callbacks: Sequence[Any] = (),
        state: Mapping[str, Any] | None = None,
        wrap: Mapping[str, Any] | None = None,
        name: str = "",
    ):
        check_parts(scheduler, forward, step)
        self.job = job = own_job() if job is None else job
        self.name = name
        self.amp = job.amp if amp is None else amp if isinstance(amp, Amp) else Amp(amp, job.device)
        usual = step is train_step.step and forward is train_step.forward
        if usual and optimizer is not None and self.amp.masters is None:  # else the optimizer has only the masters
            check_trains(model, loss, optimizer)
        self._wrapped = self._wrap(model, optimizer, wrap or {}, by_parts=step is not train_step.step)
        self._sharded = is_sharded(self._wrapped)
        self.net = unwrap(self._wrapped)
        self.model = self._wrapped  # the model that forward() calls; during an evaluation, the bare module
        self.loss, self.optimizer, self.scheduler = loss, optimizer, scheduler
        if scheduler_every not in ("step", "epoch"):
            raise ConfigError(f"scheduler_every: {scheduler_every!r} is neither step nor epoch. Use one of them.")
        self.scheduler_every = "epoch" if isinstance(scheduler, ReduceLROnPlateau) else scheduler_every
        self.takes_closure = optimizer is not None and train_step.needs_closure(optimizer)
        if optimizer is not None:
            self.amp.adopt(optimizer)
        self.accumulate = job.train.accumulate if accumulate is None else accumulate
        self.nan_guard = job.nan_guard(self.net)
        given: dict[str, Any] = {"clip_norm": clip_norm, "clip_value": clip_value, "nan_guard": self.nan_guard}
        if clip_norm is None and clip_value is None:
            given |= {"clip_norm": job.train.clip_norm, "clip_value": job.train.clip_value}
        self.step_options = given  # for amp.step()
        self.forward, self.step = forward, step
        self.callbacks = Callbacks(callbacks, on_step, on_epoch)
        self.history = History()
        self.scores = Scores(metrics, job.group)  # the scores of the current epoch
        self.loop: Loop[Any] | None = None
        self.skips_val = False  # whether the epoch has no evaluation, and others have
        self._apart_s = 0.0  # seconds of evaluations within the epoch
        self._metrics = metrics
        self._data: Any = None  # the training data of fit()
        self._lines: StepLines | None = None
        self.best_model = BestModel(self, self._wrapped)
        self._state = {"model": self._wrapped, "amp": self.amp, "history": self.history, "scores": self.scores.meters}
        self._state |= {name: thing for name, thing in (("optimizer", optimizer), ("scheduler", scheduler)) if thing}
        self._state |= self.callbacks.state
        if taken := sorted(self._state.keys() & (state or {}).keys()):
            raise ConfigError(f"state.{taken[0]}: the Trainer keeps its own under this name. Give yours another.")
        self._state |= state or {}
        for thing in self._state.values():
            if isinstance(thing, Ema):
                thing.follow(self.net, self.amp)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_method(name)

    def fit(
        self,
        train: Any,
        val: Any = None,
        *,
        epochs: int | None = None,
        max_steps: int | None = None,
        limit_batches: int | None = None,
        val_every: int = 1,
        val_every_steps: int | None = None,
        log_every: int | None = None,
        fast_dev_run: bool = False,
        batch_size: int | None = 32,
        transform: Callable[[Any], Any] | None = None,
        val_options: Mapping[str, Any] | None = None,
        **loader: Any,
    ) -> History:
        """Trains from the run's position to `epochs` in all, and evaluates on val after each epoch. A second call
        continues with the same data, to more epochs. Other data needs another Trainer, with a name.

        epochs: default 1, or as many as max_steps take. max_steps: the training ends after this step (a batch), or at
        the end of its window; a later call begins the next epoch. limit_batches: the most batches of an epoch, and of
        each evaluation. val_every: epochs from one evaluation to the next; the last epoch is evaluated, too, unless
        stop() ends the training. val_every_steps: steps from one evaluation within an epoch to the next; their rows are
        in history.within. log_every: steps from one line in each rank's log to the next, with this rank's means.
        fast_dev_run: trains and evaluates one batch, to find errors, and restores all state.
        train, val: a data set, or tensors (x, y), divided among the ranks in batches of batch_size each; or a loader or
        other iterable of this rank's batches. batch_size=None: each sample of the data set already is a batch, as in a
        batched WebDataset. loader: options of job.loader(), such as num_workers. transform: a function that changes a
        batch on the device. val_options: options of the validation's loader that differ from the training's. Options
        that choose samples (sampler, drop_last, ...) apply only to the training. A collate_fn applies to training and
        validation, because both need padding. For a collate_fn that mixes samples, as MixUp does, pass
        val_options={"collate_fn": None}.
        """
        self._check_loader_words("fit", loader, Trainer.fit)
        self._check_loader_words("val_options", val_options or {})
        usual = self.forward is train_step.forward and self.step is train_step.step
        if usual and isinstance(train, ARRAYS) and isinstance(val, ARRAYS):
            raise ConfigError("fit: inputs and targets are one argument. Write fit((x, y), (x_val, y_val)).")
        if self.loop is not None and self.loop.step and not is_same(train, self._data):
            raise EntryError(
                "Trainer.fit: this is not the data of the first fit(), whose position this Trainer keeps. Make another "
                'one: Trainer(model, ..., name="finetune").'
            )
        check_counts(max_steps=max_steps, limit_batches=limit_batches, log_every=log_every)
        check_counts(val_every=val_every, val_every_steps=val_every_steps)
        for monitor in self.callbacks.monitors if usual else ():
            self.scores.history(val is not None).best(monitor)  # raises ConfigError for a wrong name
        epochs = epochs if epochs is not None else 1 if max_steps is None else sys.maxsize
        batches = training_data(self.job.this_rank, train, batch_size, loader)
        times = 2 if val_every_steps is not None else epochs if epochs < sys.maxsize else 1  # that val is read
        evaluate = evaluation.of_fit(self, val, times, batch_size, loader, val_options or {}, transform)
        loops: dict[str, Any] = {"accumulate": self.accumulate, "move": transform or True}
        if fast_dev_run:
            return dev_run.run(self, batches, evaluate, loops)
        loops |= {"max_steps": max_steps, "limit_batches": limit_batches, "name": self.name, "continues": self.loop}
        self.loop = loop = self.job.loop(batches, self._state, epochs=epochs, **loops)
        self._data = train
        each = batch_size_of(loop.batches.loader)
        samples = loop.position.global_batch or (None if each is None else each * self.job.world_size)
        self._lines = StepLines(log_every, each) if log_every is not None else None
        progress = Progress(epochs if epochs < sys.maxsize else 0, samples) if self.job.rank == 0 else None
        if progress is not None:
            self.job.metrics.sinks.append(progress)
        self.job.stopwatch.has_own_laps = self.step is train_step.step
        self._mode(training=True)

        if evaluate is not None and val_every_steps is not None:
            loop.between = partial(self._validate_within, val_every_steps, partial(evaluate, limit_batches), val_every)
        try:
            for epoch in self.callbacks.around(self, loop.epochs()):
                began, first, self._apart_s = time.monotonic(), loop.step, 0.0
                self._train(train_step.changing(self, epoch))
                done = loop.step - first
                number = None if each is None else done * loop.batches.mean_size * self.job.world_size
                self.history.note_time(loop.epoch + 1, time.monotonic() - began - self._apart_s, done, number)
                self._close_epoch(
                    {} if evaluate is None else evaluate(limit_batches) if loop.position.is_due(val_every) else None
                )
        except (Exception, KeyboardInterrupt) as error:
            self.callbacks.note_error(self, error)
            raise
        finally:
            if progress is not None:
                progress.close()
                self.job.metrics.sinks.remove(progress)
        return self.history

    def evaluate(
        self,
        data: Any,
        *more: NoReturn,
        batch_size: int | None = 32,
        transform: Callable[[Any], Any] | None = None,
        **loader: Any,
    ) -> dict[str, float]:
        """Returns the loss and the metrics over all samples of all ranks, each sample once."""
        if more:
            raise ConfigError("evaluate: inputs and targets are one argument. Write evaluate((x, y)).")
        self._check_loader_words("evaluate", loader, Trainer.evaluate)
        return evaluation.evaluate(self, data, batch_size, loader, transform)

    def predict(
        self,
        data: Any,
        *,
        batch_size: int | None = 32,
        transform: Callable[[Any], Any] | None = None,
        forward: Callable[..., Any] | None = None,
        to: str | Path | None = None,
        **loader: Any,
    ) -> Any:
        """Returns the model's outputs, one row per sample, in the order of the data, on all ranks, in host memory.

        data: a data set, or a tensor. From a sample (x, y), only x is used. With one rank, any iterable of batches.
        forward: function(trainer, batch) -> outputs, for example for data without targets. The default is the outputs
        of the Trainer's forward, if you have passed a forward, and the model's outputs otherwise.
        to: a folder, if all outputs together are too large for a rank's memory. Each rank writes its rows there, and
        the folder is returned; load_predictions(folder) joins them in the order of the data.
        """
        from clusterdp.train.trainer import predictions

        self._check_loader_words("predict", loader, Trainer.predict)
        batches, size = evaluation_data(self.job.this_rank, data, batch_size, loader, "predict")
        return predictions.predict(self, batches, size, transform, forward, to)

    def summary(self, sample: Any = None, *, input_shape: Sequence[Any] | None = None) -> str:
        """Returns and prints the layers and their parameters. With a batch of inputs, also the shapes of their outputs,
        and the memory of a training step.

        sample: a tensor; a tuple or list of a model's several inputs; or a mapping of its keyword arguments.
        input_shape: instead of a sample, the shape of one, without the batch: (3, 32, 32); or shapes of several inputs.
        """
        from clusterdp.train.trainer.summary import summary

        text = summary(self.net, sample, input_shape, self.optimizer, self.job.device)
        if self.job.rank == 0:
            say(text)
        return text

    def stop(self, why: str = "") -> None:
        """Ends the training, from a callback, on all ranks at the same step, even if only one rank calls stop()."""
        if why and self.job.rank == 0:
            say(f"clusterdp: training ends: {why}. (A fit() of more epochs goes on from here.)")
        if self.loop is not None:
            self.loop.end()

    def save_best(self) -> None:
        """Saves the present model for load_best(), and waits until the save is durable. Collective."""
        self.best_model.save()

    def load_best(self) -> int | None:
        """Loads the weights that keep_best or save_best() saved last, and returns their step. Returns None, and leaves
        the model unchanged, if there are none, or if the run has gone back to an earlier step (`clusterdp resume
        --from`). If the run has no place for checkpoints, these weights are only in this process's memory."""
        step = self.best_model.load()
        if step is not None:
            self.amp.renew()
        return step

    def autocast(self) -> AbstractContextManager[Any]:
        return AS_IT_IS if self.amp.dtype is None else self.amp.autocast()

    def _wrap(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        options: Mapping[str, Any],
        *,
        by_parts: bool,
    ) -> torch.nn.Module:
        """Wraps the model as set in the config's `train`. A single rank gets no DDP, unless train.exact: any_ranks adds
        up in it. by_parts: whether modules of the model may be called without the model's forward()."""
        job, by_tree = self.job, self.job.train.exact == "any_ranks"
        several = job.world_size > 1
        is_wrapped = model is not unwrap(model)
        if is_distributed(model) or (is_wrapped and not several):
            return model  # the user has already wrapped the model
        if is_wrapped:
            raise ConfigError(
                f"model: a {type(model).__name__} without DistributedDataParallel in it, which each of "
                f"{job.world_size} ranks would train alone. Pass the model itself; train.compile: true compiles it."
            )
        before = dict(model.named_parameters())
        wrapped = strategy.wrap(model, job.group, job.train, self.amp, options, share=several or by_tree)
        job.wrapped.add(wrapped)
        if by_parts and not by_tree and isinstance(wrapped, DistributedDataParallel):
            average(wrapped, job.group, {**options, **job.train.ddp})
        if is_sharded(wrapped) and optimizer is not None:
            follow(optimizer, before, wrapped)
        return wrapped

    def _train(self, epoch: Iterable[Any]) -> None:
        step, loop, on_step = self.step, self.loop, self.callbacks.on_step
        assert loop is not None
        for batch in epoch:
            self.scores.added = False
            values = step(self, batch)
            if not isinstance(values, Mapping):
                raise ConfigError(f"step: returned a {type(values).__name__}. Return {{name: number}}, as of the loss.")
            if not self.scores.added and loop.windows.weighs:
                self.scores.add_values(batch, values)
            loop.log(**values)
            ends = loop.windows.is_last_of_step(loop.place.in_window)
            if self._lines is not None:
                self._lines.add(loop.step + 1, loop.total_steps, values, ends=ends)
            for call in on_step if ends else ():
                call(self, values)

    def _close_epoch(self, val: Mapping[str, float] | None) -> None:
        """Closes an epoch after its evaluation. If an attempt is stopped in the evaluation, the next attempt repeats
        the evaluation. val: None if this epoch has no evaluation, and another one has."""
        assert self.loop is not None
        self.skips_val = val is None
        row: EpochRow = {"epoch": self.loop.epoch + 1, "step": self.loop.step, **self.scores.meters.reduce()}
        row |= {f"val_{name}": value for name, value in (val or {}).items()}
        if self.scheduler is not None and self.scheduler_every == "epoch":
            self._step_scheduler(row)
        if self.optimizer is not None:
            row["lr"] = float(self.optimizer.param_groups[0]["lr"])
        self.history.append(row)
        before = self.history[-2] if len(self.history) > 1 else {}
        self._tell(row, row_line(row, before, self.history.times.get(row["epoch"], UNTIMED)))
        if val:
            self.history.validated = self.loop.step
            self.callbacks.call("on_validation", self, row)
        self.callbacks.call("on_epoch", self, row)

    def _validate_within(self, every: int, evaluate: Callable[[], Mapping[str, float]], val_every: int) -> bool:
        """Evaluates between two steps, if it is due, and returns whether it was. val_every: as of fit()."""
        loop, history = self.loop, self.history
        assert loop is not None
        ends = loop.batches.left == 0 and loop.position.is_due(val_every)  # the epoch, with an evaluation
        if ends or loop.step // every == history.validated // every or loop.waits_for_window():
            return False
        began = time.monotonic()
        with loop.place.repeated():
            row: EpochRow = {"epoch": loop.epoch + 1, "step": loop.step}
            row |= {f"val_{name}": value for name, value in evaluate().items()}
            history.validated = loop.step
            history.within.append(row)
            self._tell(row, row_line(row, {}))
            self.callbacks.call("on_validation", self, row)
        self._apart_s += time.monotonic() - began
        return True

    def _tell(self, row: EpochRow, line: str) -> None:
        assert self.loop is not None
        matrices = {name: value for name, value in row.items() if isinstance(value, list)}
        measured = {name: value for name, value in row.items() if name not in SHAPE and name not in matrices}
        self.job.log(epoch=self.loop.epoch, **measured)
        show_matrices(self.job, matrices)
        if self.job.rank == 0:
            say(f"clusterdp: {self.name}{'  ' if self.name else ''}{line}")

    def _step_scheduler(self, row: EpochRow) -> None:
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
            return
        if self.skips_val:
            return
        watched = row.get("val_loss", row.get("loss"))
        if watched is None:
            raise ConfigError("scheduler: ReduceLROnPlateau looks at the loss, and step= returned none. Return it.")
        self.scheduler.step(watched)

    @staticmethod
    def _check_loader_words(where: str, options: Mapping[str, Any], method: Any = None) -> None:
        own = arguments_of(method) if method is not None else ["batch_size"]
        check_arguments(where, options, [*own, *LOADER], {"fit": Trainer.fit, "Trainer": Trainer})

    def _mode(self, *, training: bool) -> None:
        self.model = self._wrapped if training else self.net
        self._wrapped.train(training)
