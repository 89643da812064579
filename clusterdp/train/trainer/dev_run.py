"""A step of a training that is tried, and undone: fit(fast_dev_run=True). All calls are collective."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_map

from clusterdp.checkpoint.state import rng
from clusterdp.config.tree import CheckpointConfig, MetricsConfig, ProfileConfig
from clusterdp.train.job import JobHandle
from clusterdp.train.loop.history import EpochRow, History, row_line
from clusterdp.train.output.say import say
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
