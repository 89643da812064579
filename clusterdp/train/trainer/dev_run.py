"""Steps of a training that are tried, and undone: fit(fast_dev_run=True), and the finders of a learning rate and of a
batch size. All calls are collective.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

from clusterdp.checkpoint.state import rng
from clusterdp.config.tree import CheckpointConfig, MetricsConfig, ProfileConfig
from clusterdp.errors import ConfigError, TrainError
from clusterdp.train.data.datasets import training_data
from clusterdp.train.job import JobHandle
from clusterdp.train.loop.history import EpochRow, History, row_line
from clusterdp.train.output.say import say
from clusterdp.train.process.batch_size_search import is_out_of_memory
from clusterdp.train.profile.batch_size_finder import BatchSizeRow, BatchSizeTable
from clusterdp.train.profile.lr_finder import LrFinder
from clusterdp.train.trainer.best_model import copied
from clusterdp.train.trainer.scores import Scores

if TYPE_CHECKING:
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.trainer.trainer import Trainer


def run(
    trainer: Trainer,
    batches: Iterable[Any],
    evaluate: Callable[[int], Mapping[str, float]] | None,
    options: Mapping[str, Any],
) -> History:
    """Trains and evaluates one batch, on all ranks, and restores all state. Returns a history of its own.

    evaluate: a function of the most batches. options: the loop's.
    """
    row: EpochRow = {"epoch": 1, "step": 1}
    with tried(trainer, batches, 1, **{**options, "accumulate": 1}) as loop:
        for epoch in loop.epochs():
            trainer._train(epoch)
            row |= trainer.scores.meters.reduce()
            row |= {f"val_{name}": value for name, value in (evaluate(1) if evaluate else {}).items()}
    if trainer.job.rank == 0:
        say(f"clusterdp: fast_dev_run: {row_line(row, {})}; callbacks after an epoch were not called")
    return History([row])


def find_lr(trainer: Trainer, batches: Iterable[Any], steps: int, options: Mapping[str, Any]) -> LrFinder:
    """Trains with a learning rate that grows from step to step, and restores all state. Returns rank 0's losses."""
    if trainer.optimizer is None:
        raise ConfigError("find_lr: the Trainer has no optimizer, whose learning rate could grow. Pass one.")
    with tried(trainer, batches, steps, **options) as loop:
        finder = LrFinder([trainer.optimizer], steps)
        guard, trainer.nan_guard = trainer.nan_guard, None  # the loss is to diverge at the largest rates
        no_guard = {**trainer.step_options, "nan_guard": None}
        options_before, trainer.step_options = trainer.step_options, no_guard
        try:
            _train(trainer, loop, lambda trainer, values: finder.add(values))
        finally:
            trainer.nan_guard, trainer.step_options = guard, options_before
            finder.close()
    finder.rows = trainer.job.group.gather(finder.rows)[0]
    return finder


def find_batch_size(
    trainer: Trainer, data: Any, first: int, steps: int, loader: Mapping[str, Any], options: Mapping[str, Any]
) -> BatchSizeTable:
    """Trains with twice the batch size each time, until a larger one brings no gain, and restores all state."""
    job, cuda = trainer.job, trainer.job.device.type == "cuda"
    table, size = BatchSizeTable(job.world_size, on_gpu=cuda), first
    while table.go_on(size):
        try:
            batches = training_data(job.this_rank, data, size, loader)
        except ConfigError as error:  # the size is larger than a rank's share
            if not table.rows:
                raise
            table.ended = f"{error}".partition(". ")[0] + "."
            break
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(job.device)
        times: list[float] = []
        try:
            with tried(trainer, batches, steps, **options) as loop:
                _train(trainer, loop, lambda *_, times=times: times.append(_now(job.device)))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if job.world_size > 1:  # the others wait in the middle of a step
                raise TrainError(
                    f"batch_size {size}: memory ran out on rank {job.rank}, which ends the search."
                ) from None
            table.out_of_memory(size, job.rank)
            break
        half = len(times) // 2  # the first steps are slower
        seconds = max(job.group.gather((times[-1] - times[half - 1]) / (len(times) - half)))
        memory = job.group.agree(torch.cuda.max_memory_allocated(job.device) if cuda else 0)[0]
        inner = loop.batches
        table.add(BatchSizeRow(size, inner.mean_size, inner.batch_size, seconds, memory / 1e9 if cuda else None))
        size *= 2
    return table


def _train(trainer: Trainer, loop: Loop[Any], on_step: Callable[..., Any]) -> None:
    """Trains, and calls this function after each step instead of the user's, which may stop the training."""
    before, trainer.callbacks.on_step = trainer.callbacks.on_step, [on_step]
    try:
        for epoch in loop.epochs():
            trainer._train(epoch)
    finally:
        trainer.callbacks.on_step = before


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def tried(trainer: Trainer, batches: Iterable[Any], steps: int, **options: Any) -> Iterator[Loop[Any]]:
    """Gives the Trainer a loop of these steps that keeps nothing. Restores all state after the with block."""
    before, scores, job = trainer.loop, trainer.scores, trainer.job
    settings = replace(job._settings, run_dir=None, checkpoint=CheckpointConfig(), metrics=MetricsConfig())
    alone = JobHandle(replace(settings, profile=ProfileConfig()), job.group, job.stop_signal, job.attempt)
    loop = alone.loop(batches, trainer._state, epochs=steps, max_steps=steps, **options)
    loop.announces = False
    trainer.loop, trainer.scores = loop, Scores(trainer._metrics, job.group)
    try:
        with _restored(loop.state, trainer):
            trainer._mode(training=True)
            yield loop
    finally:
        trainer.loop, trainer.scores = before, scores


@contextmanager
def _restored(state: Mapping[str, Any], trainer: Trainer) -> Iterator[None]:
    """Restores the state's parts and the random numbers after the with block."""
    parts = [part for part in state.values() if hasattr(part, "load_state_dict")]
    saved = [tree_map(copied, part.state_dict()) for part in parts]
    with rng.kept():
        try:
            yield
        finally:
            for part, its in zip(parts, saved, strict=True):
                part.load_state_dict(its)
            trainer.net.zero_grad()
