"""MicroBatches: the batches of a loader as the micro-batches of steps of the optimizer (train.global_batch_size)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from clusterdp.config.tree import TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.train.data.global_batch import GlobalBatch, Pass
from clusterdp.train.data.loader_identity import length_of
from clusterdp.train.data.resumable_loader import our_sampler
from clusterdp.train.loop.batches import Batches
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.wording import counted

Batch = TypeVar("Batch")


def batches_of(global_batch_size: int | None, *, by_tree: bool = False) -> Callable[..., Batches[Any]]:
    """Returns what makes the batches of a loop. by_tree: see MicroBatches."""
    return Batches if global_batch_size is None else partial(MicroBatches, global_batch_size, by_tree)


def steps_of(loader: Any, rank: Rank, train: TrainConfig) -> int:
    """Returns the number of the optimizer's steps in an epoch."""
    sampler = our_sampler(loader)
    if train.global_batch_size is not None and sampler is not None:
        return GlobalBatch.of(train.global_batch_size, loader, rank.number, rank.world_size).steps(sampler.size)
    if (length := length_of(loader)) is None:
        raise ConfigError(f"steps: a {type(loader).__name__} has no length. Give its data set a __len__.")
    return -(-length // train.accumulate)


class MicroBatches(Batches[Batch]):
    """All numbers of batches are numbers of steps here; only the iterator yields micro-batches, those of this rank.

    even: whether all ranks make equally many passes in a step, the surplus ones with a micro-batch that they have had,
    and weight 0: for models with collectives in their forward pass. by_tree: whether a step has the same bits on any
    number of ranks.
    """

    def __init__(
        self,
        samples: int,
        by_tree: bool,
        rank: Rank,
        loader: Iterable[Batch],
        move: bool | Callable[[Any], Any] = False,
        lap: Callable[[str], None] = lambda name: None,
        *,
        limit: int | None = None,
    ):
        """samples: of a step. Raises ConfigError on all ranks if the loader's micro-batches cannot be shared."""
        self.global_batch = GlobalBatch.of(samples, loader, rank.number, rank.world_size)
        super().__init__(rank, loader, move, lap, limit=limit)
        assert self.sampler is not None
        self.sampler.global_batch = self.global_batch
        self.position.global_batch, self.position.micro_batch = samples, self.batch_size
        self.even, self.by_tree = False, by_tree

    def measure(self) -> None:
        super().measure()
        steps, limit = self.global_batch.steps(self.sampler.size if self.sampler is not None else 0), self.limit
        self.per_epoch = steps if limit is None else min(limit, steps)
        self._surplus = limit is not None and limit < steps

    def rest(self) -> int | None:
        counts = self.sampler is not None and self.sampler.epoch == self.position.epoch
        if self.position.ended or self.per_epoch is None or not counts:
            return super().rest()
        left = self.global_batch.steps(self._samples_left())
        return left if self.limit is None else min(left, self.per_epoch - self.position.batch)

    def _samples_left(self) -> int:
        """Returns the number of samples from the position to the end of the epoch."""
        assert self.sampler is not None
        return self.sampler.total - self.sampler.consumed

    @property
    def step_samples(self) -> int:
        """The number of samples in the step at the position."""
        return min(self.global_batch.samples, self._samples_left())

    def say_share(self, what: str = "", accumulate: int = 1) -> None:
        if self.per_epoch is not None and self.rank.is_first:
            what = f"{what}: " if what else ""
            say(f"clusterdp: {what}{counted(self.per_epoch, 'step')} in an epoch; {self.global_batch}")

    def resumed(self, ranks: int) -> list[str]:
        found = super().resumed(ranks)
        was, now = self.position.saved_micro_batch, self.batch_size
        if was not in (0, now):
            words = "same samples, but other random numbers and BatchNorm statistics"
            changed = f"a micro-batch had {was} samples and has {now}: {words}"
            self._say(f"{changed}.")
            found += [f"loader: {changed}"] if self.by_tree else []
        if self.by_tree and ranks != self.rank.world_size and was in (0, now) and self.rank.is_first:
            here = counted(self.rank.world_size, "rank")
            say(f"clusterdp: {here}, and {ranks} at the save: each step has the same bits (train.exact: any_ranks).")
        return found

    def open(self) -> Iterator[Batch]:
        self.opened = self._with_repeated(super().open())
        return self.opened

    def passes(self) -> list[Pass]:
        """Returns this rank's passes in the step at the position."""
        return self.global_batch.passes(self.step_samples, even=self.even)

    def _with_repeated(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            passes = self.passes()
            yield batch
            for number in range(1, len(passes)):
                if passes[number].number != passes[number - 1].number:
                    batch = next(batches)
                yield batch

    @property
    def mean_size(self) -> float:
        """Average number of samples in a step of one rank."""
        size = self.global_batch.used(self.sampler.size) if self.sampler is not None else 0
        samples = min(self.global_batch.samples, size / self.per_epoch) if self.per_epoch else self.global_batch.samples
        return samples / self.rank.world_size
