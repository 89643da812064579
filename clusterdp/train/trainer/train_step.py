"""The two functions with which Trainer handles a batch. You can replace each of them by your own function.

def forward(trainer, batch):                       # Trainer(..., forward=forward)
    outputs = trainer.model(batch["image"])
    return trainer.loss(outputs, batch["label"]), outputs, batch["label"]

def step(trainer, batch):                          # Trainer(..., step=step): two optimizers, two losses, ...
    ...
    return {"loss": loss, "penalty": penalty}
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from clusterdp.errors import ConfigError
from clusterdp.train.optim.accumulation import gradient_sync
from clusterdp.train.parallel.strategy import is_sharded

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer


def forward(trainer: Trainer, batch: Any) -> Any:
    """Runs the model on (x, y), (x1, x2, y) or ((x1, x2), y): the last part is the target. The Trainer uses forward()
    for training and for evaluation."""
    if not isinstance(batch, (list, tuple)) or len(batch) < 2 or trainer.loss is None:
        what = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, list | tuple) else "")
        raise ConfigError(
            f"Trainer: a batch is {what}{'' if trainer.loss else ', and there is no loss'}; (inputs, targets) and a "
            "loss are needed. Pass forward=, a function of (trainer, batch) that returns the loss."
        )
    *inputs, targets = batch
    try:
        outputs = call_model(trainer, inputs)
        return trainer.loss(outputs, targets), outputs, targets
    except (TypeError, AttributeError):
        if not isinstance(targets, int | float):
            raise
    raise ConfigError(
        f"Trainer: the targets of a batch are {targets!r}, as of one sample. Lists and other iterables are read as "
        "batches: pass tensors (x, y), a data set, or trainer.job.loader(samples, 32)."
    )


def call_model(trainer: Trainer, inputs: Sequence[Any]) -> Any:
    """Runs the model on its inputs. A single input that is a list, tuple or mapping is spread over the model's
    arguments, if the model needs several: ((x1, x2), y), or ({"image": x, "text": t}, y)."""
    named: Mapping[str, Any] = {}
    if len(inputs) == 1 and not isinstance(inputs[0], torch.Tensor) and isinstance(inputs[0], Mapping | list | tuple):
        inputs, named = _spread(trainer.net, inputs[0])
    try:
        return trainer.model(*inputs, **named)
    except TypeError:
        if not named:
            _check_inputs(trainer.net, inputs)
        raise


def _spread(net: torch.nn.Module, given: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    takes = inspect.signature(net.forward)
    if isinstance(given, Mapping):
        names = {p.name for p in takes.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD}
        by_name = given and (given.keys() <= names or len(names) < len(takes.parameters))
        return ((), given) if by_name else ([given], {})
    if all(p.kind is not inspect.Parameter.VAR_POSITIONAL for p in takes.parameters.values()):
        with suppress(TypeError):
            takes.bind(given)
            return [given], {}  # the model takes one argument, and this is it
    return given, {}


def _check_inputs(net: torch.nn.Module, inputs: Sequence[Any]) -> None:
    """Raises ConfigError if the model does not take this number of inputs."""
    signature = inspect.signature(net.forward)
    try:
        signature.bind(*inputs)
    except TypeError:
        given = f"{len(inputs)} ({', '.join(type(each).__name__ for each in inputs)})"
        raise ConfigError(
            f"Trainer: {type(net).__name__}.forward() takes {signature}, and a batch has {given} before its target. "
            "For two inputs pass fit((x1, x2, y)), the target last; else forward=, a function of (trainer, batch) that "
            "returns (loss, outputs, targets)."
        ) from None


def step(trainer: Trainer, batch: Any) -> Mapping[str, Any]:
    """Runs forward, backward and, at the end of a window, the optimizer's step. Returns the values to log."""
    loop, optimizer = trainer.loop, trainer.optimizer
    assert loop is not None
    if optimizer is None:
        raise ConfigError("Trainer: there is no optimizer to step. Pass one, or a step= of your own.")
    if trainer.takes_closure:
        return _closure_step(trainer, batch, optimizer)
    ends, lap = loop.window_ends, trainer.job.stopwatch.lap
    with gradient_sync(trainer.model, ends):
        with trainer.autocast():
            loss, outputs, targets = parts_of(trainer.forward(trainer, batch))
        if trainer.nan_guard is not None:
            loss = trainer.nan_guard.watch(loss, loop.samples)
        lap("forward")
        trainer.amp.backward(loss if loop.window == 1 else loss / loop.window)
    lap("backward")
    if ends:
        trainer.amp.step(optimizer, **trainer.step_options)
        optimizer.zero_grad()
        if trainer.scheduler is not None and trainer.scheduler_every == "step" and not _is_skipped(trainer, optimizer):
            trainer.scheduler.step()
        lap("optimizer")
    loss = loss.detach()
    skips = trainer.nan_guard is not None and trainer.nan_guard.on_nan == "skip"
    if loop.windows.weighs:
        trainer.scores.add(batch, loss, outputs, targets, only_finite=skips)
    lap("metrics")
    return {"loss": loss}


def _is_skipped(trainer: Trainer, optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer's step was skipped because of an overflow: then the schedule waits, too. A fused
    optimizer decides on the GPU, and to ask would make each step wait for the GPU: False."""
    fused = getattr(optimizer, "_step_supports_amp_scaling", False)
    return trainer.amp.is_scaled and not fused and trainer.amp.skipped


def changing(trainer: Trainer, epoch: Iterable[Any]) -> Iterator[Any]:
    """Yields the batches of an epoch. Raises ConfigError if a user's step changes no parameter of an optimizer in the
    run's first steps, of which mixed precision may skip some."""
    batches, loop = iter(epoch), trainer.loop
    is_looked_at = loop and trainer.step is not step and not loop.step and not is_sharded(trainer.model)
    parts = [*loop.state.values()] if loop and is_looked_at else []
    optimizers = [part for part in parts if isinstance(part, torch.optim.Optimizer)]
    weights = [weight for optimizer in optimizers for group in optimizer.param_groups for weight in group["params"]]
    before = [(weight._version, weight.detach().flatten()[:64].clone()) for weight in weights]
    done = 0
    window = loop.windows.accumulate if loop else 1
    for batch in islice(batches, 32 * window if before else 0):
        done += 1
        yield batch
    same = [w._version == n and w.flatten()[:64].equal(few) for w, (n, few) in zip(weights, before, strict=True)]
    if done >= 4 * window and all(same):  # a fused step changes values, and counts no version
        raise ConfigError(
            f"step: {done} steps have changed no parameter. Call trainer.amp.backward(loss) and "
            "trainer.amp.step(optimizer) in it; see clusterdp.train.trainer.train_step."
        )
    yield from batches


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer's step() needs a function that evaluates the model, as LBFGS's does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _closure_step(trainer: Trainer, batch: Any, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
    """Steps an optimizer that evaluates the model several times. All ranks get the same loss, the mean over the ranks,
    and therefore take the same decisions."""
    limits = any(value is not None for value in trainer.step_options.values())
    loop = trainer.loop
    several = trainer.accumulate > 1 or (loop is not None and loop.position.micro_batch > 0)
    if limits or several or trainer.amp.is_scaled or trainer.amp.masters is not None:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} evaluates the model several times in a step, and goes with amp O0 "
            "or bf16 only, without accumulate, global_batch_size, clip_norm, clip_value and on_nan. Leave them out, or "
            "write Trainer(step=...)."
        )
    first: list[Any] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        with trainer.autocast():
            loss, outputs, targets = parts_of(trainer.forward(trainer, batch))
        trainer.amp.backward(loss)
        first.extend([] if first else [loss.detach(), outputs, targets])
        mean = loss.detach().clone()
        if trainer.job.world_size > 1:
            dist.all_reduce(mean.div_(trainer.job.world_size))
        return mean

    optimizer.step(closure)  # type: ignore[arg-type]
    optimizer.zero_grad()
    if trainer.scheduler is not None and trainer.scheduler_every == "step":
        trainer.scheduler.step()
    trainer.scores.add(batch, *first)
    return {"loss": first[0]}


def outputs(trainer: Trainer, batch: Any) -> Any:
    """Returns the model's outputs for a prediction. If the user has passed a forward(), it is used, because it knows
    which part of the batch goes into the model."""
    if trainer.forward is forward:
        return call_model(trainer, inputs_of(batch))
    try:
        given = trainer.forward(trainer, batch)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note("predict asked the Trainer's forward. For data without targets: predict(forward=...).")
        raise
    if not isinstance(given, tuple) or len(given) != 3:
        raise ConfigError(
            "predict: the Trainer's forward returned the loss alone. Return (loss, outputs, targets) from it, or pass "
            "predict(forward=...), a function of (trainer, batch) that returns the outputs."
        )
    return given[1]


def parts_of(given: Any) -> tuple[torch.Tensor, Any, Any]:
    """Returns (loss, outputs, targets) from the return value of forward(), which may be the loss alone."""
    loss, outputs, targets = given if isinstance(given, tuple) and len(given) == 3 else (given, None, None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(f"Trainer: the loss is {what}. Return one number, such as its mean(), from loss or forward.")
    return loss, outputs, targets


def inputs_of(batch: Any) -> tuple[Any, ...]:
    """Returns the model's inputs for a prediction: x, both for a batch (x, y) and for (x,)."""
    if not isinstance(batch, list | tuple):
        return (batch,)
    return tuple(batch[:-1]) if len(batch) > 1 else tuple(batch)
