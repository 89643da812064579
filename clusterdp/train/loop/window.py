"""Window: the batches of a rank between two steps of the optimizer.

accumulate=k                every k batches; the loop's steps are batches
train.global_batch_size     this rank's share of a step's micro-batches; the loop's steps are the optimizer's
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clusterdp.errors import ConfigError
from clusterdp.train.data.global_batch import KEY, Pass
from clusterdp.train.data.streams import mixed_seed, seed_streams
from clusterdp.train.loop.graph_watch import GraphWatch, detached
from clusterdp.train.loop.micro_batches import MicroBatches
from clusterdp.train.parallel.strategy import is_sharded
from clusterdp.train.parallel.syncbn import GlooBatchNorm

if TYPE_CHECKING:
    from clusterdp.train.loop.batches import Batches
    from clusterdp.train.output.attempt_record import AttemptRecord
    from clusterdp.train.parallel.ddp import DdpModels

Parts = dict[str, list[tuple[int, Any]]]  # name -> (samples of a micro-batch, what it has logged)


class Window:
    """accumulate: the largest number of batches. size: number of batches. steps: number of the loop's steps.
    weighs: whether the current batch has a weight; False if another pass has the same."""

    weighs = True

    def __init__(self, batches: Batches[Any], accumulate: int):
        self.accumulate = self.size = self.steps = accumulate
        self._batches = batches
        self._logged: dict[str, Any] = {}
        self._graphs = GraphWatch()

    def enter(self, done: int) -> tuple[bool, int | None]:
        """Called before the program gets a batch. Returns whether a step of the loop begins with it, and its number
        among the micro-batches of the step, if it is one. done: number of the window's finished batches."""
        if self.accumulate > 1 and done == 0:
            self.size = self.steps = min(self.accumulate, self._batches.left or self.accumulate)
        return True, None

    def ends(self, done: int) -> bool:
        """Returns whether the current batch is the last one."""
        return done + 1 == self.size

    def divisor(self) -> float:
        """Returns the number of batches. With a global batch, it is for a mean over the samples of the step: larger for
        a batch with fewer samples, and inf for one that comes twice."""
        return self.size

    def next_number(self) -> int | None:
        """Returns the number of this rank's next micro-batch, between two steps; None if there is none."""
        return None

    def is_last_of_step(self, done: int) -> bool:
        """Returns whether a step of the loop ends with the current batch."""
        return True

    def closes_step(self, done: int) -> bool:
        """Called after each batch. Returns whether a step of the loop ends with it. done: number of the window's
        finished batches; 0 at its end."""
        return True

    def samples(self, done: int) -> Callable[[], list[int]] | None:
        """Returns a function that returns the indices of the current batch; None if they are unknown."""
        sampler = self._batches.sampler
        return partial(sampler.samples, sampler.consumed, self._batches.batch_size) if sampler is not None else None

    def log(self, values: Mapping[str, Any]) -> None:
        """Notes values of the current batch. Tensors stay on their device, without graphs."""
        if self._batches.rank.is_first:
            for name, value in values.items():
                self._graphs.look(name, value)
                self._logged[name] = detached(name, value)

    def values(self, *, watched: bool) -> dict[str, Any] | None:
        """Returns what the step that ends has logged; None if nobody wants it. watched: whether the witness does."""
        logged, self._logged = self._logged, {}
        return logged

    def ask_for_values(self, asked: bool) -> None:
        """Called with the agreed flag `metrics`."""

    def write(self) -> None:
        """Records what the last step has logged, if it is not recorded yet. Collective."""

    def resumed(self, ranks: int) -> None:
        """Called after a restore of what `ranks` ranks have saved."""


class GlobalWindow(Window):
    """Before each micro-batch, the random streams are seeded by (seed, step, micro-batch), so that they are the same
    whichever rank has it. What is logged is averaged over the samples of a step, on all ranks, at the steps at which a
    record is due."""

    def __init__(self, batches: MicroBatches[Any], state: Mapping[str, Any], models: DdpModels, record: AttemptRecord):
        super().__init__(batches, batches.global_batch.most)
        self.steps = 1
        models.by_tree = batches.by_tree
        self._micro, self._models, self._record, self._rank = batches, models, record, batches.rank
        modules = [each for part in state.values() if isinstance(part, nn.Module) for each in part.modules()]
        batches.even = any(isinstance(each, nn.SyncBatchNorm | GlooBatchNorm) or is_sharded(each) for each in modules)
        self._passes = list[Pass]()
        self._divisor = 1.0  # of the current batch
        self._parts: Parts = {}  # of the step
        self._unwritten: Parts = {}  # of the last step
        self._wanted = False  # whether the next values are, on all ranks
        self._read = set[str]()  # the attributes of the loop that the program has read
        self._is_checked = False

    def enter(self, done: int) -> tuple[bool, int | None]:
        if done == 0:
            self._passes = self._micro.passes()
            self.size = len(self._passes)
        here, whole = self._passes[done], self._micro.global_batch
        self.weighs, self._samples = here.weighs, here.samples
        # DDP averages over the ranks, and a tree adds up.
        shares = 1 if self._micro.by_tree else whole.ranks
        self._divisor = self._micro.step_samples / (shares * here.samples) if here.weighs else math.inf
        self._models.exchange(done + 1 == self.size)
        for tree in self._models.trees:
            if done == 0:
                tree.begin_step(self._shares())
            tree.begin_pass(here.number)
        self._seed(self._record.step, here.number)
        return done == 0, here.number

    def _shares(self) -> list[range]:
        """Returns the numbers of each rank's micro-batches in the step at the position."""
        whole = self._micro.global_batch
        count = -(-self._micro.step_samples // whole.size)
        return [whole.share(count, rank) for rank in range(whole.ranks)]

    def next_number(self) -> int | None:
        return self._micro.passes()[0].number if self._micro.step_samples else None

    def _seed(self, step: int, number: int) -> None:
        """step: number of finished steps of the run."""
        seed = mixed_seed(self._rank.seed, step, number)
        seed_streams(seed)
        for device in self._rank.devices:
            if device.type == "cuda":
                torch.cuda.default_generators[device.index or 0].manual_seed(seed)

    def _seed_between(self, step: int) -> None:
        self._seed(step, self._micro.global_batch.count)  # the number of no micro-batch

    def resumed(self, ranks: int) -> None:
        if ranks != self._rank.world_size:
            self._seed_between(self._record.step)

    def is_last_of_step(self, done: int) -> bool:
        return done + 1 == self.size

    def ends(self, done: int) -> bool:
        self._read.add("window_ends")
        return super().ends(done)

    def divisor(self) -> float:
        self._read.add("window")
        return self._divisor

    def closes_step(self, done: int) -> bool:
        if done:
            return False
        if not self._is_checked:
            self._is_checked = True
            self._check_read()
        self._seed_between(self._record.step + 1)
        return True

    def _check_read(self) -> None:
        """Raises ConfigError, on all ranks, if the program does not weigh its losses, or steps after each batch."""
        whole, sampler = self._micro.global_batch, self._micro.sampler
        assert sampler is not None
        is_weighed = whole.count > 1 if self._micro.by_tree else whole.weighs(sampler.size)
        needed = {"window": is_weighed, "window_ends": whole.most > 1}
        lacking = [f"loop.{name}" for name, is_needed in needed.items() if is_needed and name not in self._read]
        if lacking:
            fits = whole.samples % whole.ranks == 0 and not self._micro.by_tree
            other = f"; or use a batch_size of {whole.samples // whole.ranks}, and drop_last=True" if fits else ""
            raise ConfigError(
                f"{KEY}: {whole}, and the program does not use {' and '.join(lacking)}. Write (loss / loop.window)"
                f".backward(), and let the optimizer step if loop.window_ends{other}."
            )

    def samples(self, done: int) -> Callable[[], list[int]] | None:
        sampler, here = self._micro.sampler, (self._passes or self._micro.passes())[done]
        assert sampler is not None
        return partial(sampler.samples, sampler.consumed + here.number * self._micro.batch_size, here.samples)

    def log(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items() if self.weighs else ():
            self._graphs.look(name, value)
            self._parts.setdefault(name, []).append((self._samples, detached(name, value)))

    def values(self, *, watched: bool) -> dict[str, Any] | None:
        self._unwritten, self._parts = self._parts, {}
        if self._record.metrics.is_due:
            self._rank.flags.set("metrics")
        wanted, self._wanted = self._wanted or watched, False
        return self._means() if wanted else None

    def ask_for_values(self, asked: bool) -> None:
        self._wanted = self._wanted or asked

    def write(self) -> None:
        if self._rank.group.agree(int(bool(self._unwritten)))[0]:
            self._record.values_of_step(self._means())

    def _means(self) -> dict[str, Any]:
        """Returns the means over the samples of all ranks. Collective, and waits for the GPU. Of values that are no
        numbers, returns the first."""
        parts, self._unwritten = self._unwritten, {}
        own = {name: [(samples, _plain(value)) for samples, value in each] for name, each in parts.items()}
        every = self._rank.group.gather(own)
        names = dict.fromkeys(name for each in every for name in each)
        return {name: _mean([part for each in every for part in each.get(name, ())]) for name in names}


def window_of(
    batches: Batches[Any], accumulate: int, state: Mapping[str, Any], models: DdpModels, record: AttemptRecord
) -> Window:
    """models: of the state."""
    if not isinstance(batches, MicroBatches):
        return Window(batches, accumulate)
    if accumulate != 1:
        raise ConfigError(f"accumulate: {accumulate}, and {KEY} says how many batches a step has. Leave one out.")
    return GlobalWindow(batches, state, models, record)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _mean(parts: list[tuple[int, Any]]) -> Any:
    values = [value for _, value in parts]
    if all(value == values[0] for value in values) or not all(isinstance(value, int | float) for value in values):
        return values[0]  # a learning rate stays as it is
    return sum(samples * value for samples, value in parts) / sum(samples for samples, _ in parts)
