"""Evaluation: reads each sample of all ranks once, with the bare module and without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from clusterdp.errors import ConfigError
from clusterdp.train.data.datasets import evaluation_data, options_of_val
from clusterdp.train.data.even_batches import even_batches
from clusterdp.train.data.loader_defaults import check_can_be_read_again
from clusterdp.train.data.prefetch import Prefetcher
from clusterdp.train.hang import page
from clusterdp.train.trainer import train_step
from clusterdp.train.trainer.scores import Scores

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer

NO_BATCH = "{}: the data gave no batch. Give it data; an iterator that has been read is through, so pass a new one."
Evaluate = Callable[[int | None], dict[str, float]]  # a function of the most batches


def of_fit(
    trainer: Trainer,
    val: Any,
    epochs: int,
    batch_size: int | None,
    loader: Mapping[str, Any],
    own: Mapping[str, Any],
    transform: Any,
) -> Evaluate | None:
    """Returns the function that evaluates on fit()'s val; None without val. own: val_options. An error in the options
    is raised here, and not after the first epoch."""
    if val is None:
        return None
    check_can_be_read_again("val", val, epochs)
    options = options_of_val(val, loader, own)
    evaluation_data(trainer.job.this_rank, val, batch_size, options, "val")
    return partial(evaluate, trainer, val, batch_size, options, transform)


def evaluate(
    trainer: Trainer,
    data: Any,
    batch_size: int | None,
    loader: Mapping[str, Any],
    transform: Any,
    limit: int | None = None,
) -> dict[str, float]:
    """Returns the loss and the metrics. limit: the most batches."""
    batches, _ = evaluation_data(trainer.job.this_rank, data, batch_size, loader, "evaluate")
    scores, training = Scores(trainer._metrics, trainer.job.group), trainer.scores
    with evaluating(trainer):
        trainer.scores = scores
        try:
            for batch, mine in watched(trainer, batches, transform, limit):
                with trainer.autocast():
                    loss, outputs, targets = train_step.parts_of(trainer.forward(trainer, batch))
                if mine:
                    scores.add(batch, loss, outputs, targets)
        finally:
            trainer.scores = training
    if not (found := scores.meters.reduce()):
        raise ConfigError(NO_BATCH.format("evaluate"))
    return found


@contextmanager
def evaluating(trainer: Trainer) -> Iterator[None]:
    """Uses the bare module in the with block: ranks may have different numbers of batches, and DDP would wait for all
    ranks."""
    wrapped, net = trainer._wrapped, trainer.net
    if trainer.job.world_size > 1 and (trainer._sharded or getattr(wrapped, "broadcast_buffers", False)):
        # All ranks evaluate the buffers that a checkpoint keeps. DDP copies buffers to all ranks before a step, FSDP2
        # does not.
        for buffer in net.buffers():
            if not hasattr(buffer, "full_tensor"):  # a DTensor has the attribute full_tensor
                dist.broadcast(buffer, 0)
    was = net.training
    trainer._mode(training=False)
    with torch.no_grad(), page.during(page.EVALUATION):
        yield
    trainer._mode(training=was)


def watched(trainer: Trainer, batches: Iterable[Any], transform: Any, limit: int | None = None) -> Iterator[Any]:
    """Yields each batch, and whether it is this rank's own. FSDP2 needs all ranks in each batch: a rank without batches
    gets repeated ones.

    A stop is possible, except in callbacks. No batch is fetched ahead, because the ranks may have different numbers of
    batches.
    """
    job = trainer.job
    with job.stop_signal.shielded():
        iterator = islice(iter(batches), limit)  # in this block, because it starts the loader's workers
    moved = Prefetcher(iterator, job.device, transform=transform, ahead=False)
    items = even_batches(moved, job.group) if trainer._sharded else ((batch, True) for batch in moved)
    yield from page.with_signs(items) if trainer.callbacks.are_running else job.phases.watch(items)
