"""fit(fast_dev_run=True): one batch of the training and of the validation, to find errors before a long run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from clusterdp.train.loop.history import EpochRow, History, row_line
from clusterdp.train.output.say import say
from clusterdp.train.trainer.scores import Scores

if TYPE_CHECKING:
    from clusterdp.train.trainer.trainer import Trainer


def run(
    trainer: Trainer,
    batches: Iterable[Any],
    evaluate: Callable[[int], Mapping[str, float]] | None,
    options: Mapping[str, Any],
) -> History:
    """Trains and evaluates one batch, on all ranks, in a loop that keeps nothing. Returns a history of its own.

    evaluate: a function of the most batches. options: the loop's.
    """
    before, scores = trainer.loop, trainer.scores
    job = trainer.job.for_measuring(trainer.job.params)
    trainer.loop = loop = job.loop(batches, trainer._state, limit_batches=1, **{**options, "accumulate": 1})
    trainer.scores = Scores(trainer._metrics, trainer.job.group)
    row: EpochRow = {"epoch": 1, "step": 1}
    try:
        trainer._mode(training=True)
        for epoch in loop.epochs():
            trainer._train(epoch)
            row |= trainer.scores.meters.reduce()
            row |= {f"val_{name}": value for name, value in (evaluate(1) if evaluate else {}).items()}
    finally:
        trainer.loop, trainer.scores = before, scores
    if trainer.job.rank == 0:
        say(f"clusterdp: fast_dev_run: {row_line(row, {})}; callbacks after an epoch were not called")
    return History([row])
