"""JobHandle: the first argument of the user's function, `def main(job, **params)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, Sampler

from clusterdp.config.tree import CheckpointConfig, ProfileConfig, TrainConfig
from clusterdp.rundir import RunDir
from clusterdp.train.argument_names import checked_class
from clusterdp.train.data.loader_defaults import check_can_be_read_again
from clusterdp.train.data.make_loader import make_loader
from clusterdp.train.loop.phases import Phases
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.ranks.claim import Claim
from clusterdp.train.ranks.group import Group
from clusterdp.train.ranks.rank import Rank
from clusterdp.train.ranks.stop import StopSignal
from clusterdp.train.settings import WorkerSettings

if TYPE_CHECKING:  # a function with its own loop need not wait for these imports
    from clusterdp.checkpoint import Checkpointer, PerRank
    from clusterdp.storage import Storage
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.optim.amp import Amp
    from clusterdp.train.optim.batch_size import BatchSize
    from clusterdp.train.optim.nan_guard import NanGuard
    from clusterdp.train.profile.profiling import Profile

Batch = TypeVar("Batch")


@checked_class
class JobHandle:
    """The handle of a job for the user's function, which may ignore it. Each rank has its own JobHandle.

    this_rank: this process among its peers. record: the attempt's records. All other attributes come from this_rank and
    record, or from the config.
    """

    def __init__(
        self, settings: WorkerSettings, group: Group, stop: StopSignal, attempt: str, claim: Claim | None = None
    ):
        self._settings = settings
        self.train: TrainConfig = settings.train  # the config's section `train`
        self.saving: CheckpointConfig = settings.checkpoint
        self.profile: ProfileConfig = settings.profile  # a loop ends after profile.steps steps
        self._claim = claim
        self._run = RunDir(settings.run_dir) if settings.run_dir else None
        self.this_rank = rank = Rank(group, stop, settings.train.seed)
        self.rank, self.world_size = rank.number, rank.world_size
        self.local_rank, self.local_world_size, self.node_rank = rank.local_rank, rank.local_world_size, rank.node_rank
        self.device, self.devices = rank.device, rank.devices
        self.group, self.stop_signal, self.flags, self.seed = group, stop, rank.flags, rank.seed
        self.run_dir: Path | None = settings.run_dir
        self.params: Mapping[str, Any] = settings.params
        self.attempt = attempt
        self.record = AttemptRecord(self._run, attempt, settings.metrics, writes=rank.is_first)
        self.metrics = self.record.metrics
        self.stopwatch = self._stopwatch()
        self.wrapped: WeakSet[torch.nn.Module] = WeakSet()
        self.phases = Phases(
            rank,
            self.record,
            self.stopwatch,
            settings.checkpoint,
            self.checkpointer,
            resume_step=settings.resume_step,
            max_steps=settings.train.max_steps,
            profile=self._profile(),
        )

    @property
    def step(self) -> int:
        """The step of the run, over all loops."""
        return self.record.step

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Returns the model on this rank's device, wrapped as set in the config's `train`; in DDP by default.
        Collective. Call it before the optimizer is made.

        options: arguments of DistributedDataParallel; those in the config override them.
        """
        from clusterdp.train.parallel import strategy

        wrapped = strategy.wrap(model, self.group, self.train, self.amp, options)
        self.wrapped.add(wrapped)
        return wrapped

    def stop(self, why: str) -> None:
        """Asks for the end of the run, and returns. One rank or several ranks may call stop() at any time. All ranks
        stop at the same step, within two exchanges of flags, and save. The run is not requeued. `clusterdp resume`
        continues the run."""
        self.stop_signal.request(f"job.stop: {why}")

    def mean(self, value: Any) -> Any:
        """Returns the mean of a number or a tensor over all ranks, such as the accuracy of an evaluation that the ranks
        share. All ranks get the same bits. Collective."""
        return self.group.mean(value)

    def per_rank(self, thing: Any) -> PerRank:
        """Marks a dict, a tensor or an object in the state of a loop as this rank's own: each rank saves and restores
        its own. Without the mark, its state must be equal on all ranks."""
        from clusterdp.checkpoint import PerRank

        return PerRank(thing)

    @cached_property
    def amp(self) -> Amp:
        """The Amp for mixed precision, as set in the config's train.amp."""
        from clusterdp.train.optim.amp import Amp

        return Amp(device=self.device, **asdict(self.train.amp))

    def nan_guard(self, model: torch.nn.Module) -> NanGuard | None:
        """Returns the guard for Amp.step(nan_guard=...), as set in the config's train.on_nan; None if on_nan is not
        set."""
        from clusterdp.train.optim.nan_guard import NanGuard

        on_nan = self.train.on_nan
        return NanGuard(model, self.group, on_nan, step=lambda: self.step + 1) if on_nan is not None else None

    def batch_size(self, per_rank: int) -> BatchSize:
        """Returns the size of a step's global batch: over all ranks, and over the config's train.accumulate; or
        train.global_batch_size, as that of one rank. Rank 0 prints the size."""
        from clusterdp.train.optim.batch_size import BatchSize

        batch = BatchSize(per_rank, self.world_size, self.train.accumulate)
        if (whole := self.train.global_batch_size) is not None:
            batch = BatchSize.of_total(whole, 1, accumulate=max(1, whole // per_rank))
        if self.rank == 0:
            say(f"clusterdp: {batch}")
        return batch

    def loader(
        self,
        dataset: Any,
        batch_size: int | None,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        sampler: Sampler[int] | None = None,
        seed_samples: bool = True,
        **options: Any,
    ) -> DataLoader[Any]:
        """Returns a DataLoader over this rank's share, with a position that is saved. batch_size: samples per rank;
        None: each sample of the data set already is a batch.

        sampler: an object that draws the order of all ranks' samples, like torch's WeightedRandomSampler; with a
        sampler, shuffle has no effect. seed_samples: whether augmentations depend only on seed, epoch and sample; see
        SeededDataset, which then wraps `dataset`. Tensors and arrays, also in a tuple or a mapping, a TensorDataset or
        a Subset of one are sliced per batch, unless options choose how samples are read. Shards are divided by file;
        see class Shards. Any other iterable data set must divide itself, by job.rank and job.world_size; see Batches
        for its position.
        The loader's length is the whole epoch's, also after a resume within an epoch; see ResumableLoader for `done`
        and `left`. Raises ConfigError on all ranks if the loader would have no batch at all.
        options: DataLoader's options; see loader_defaults() for the defaults.
        """
        own = {"shuffle": shuffle, "drop_last": drop_last, "sampler": sampler, "seed_samples": seed_samples}
        return make_loader(self.this_rank, dataset, batch_size, **own, **options)  # type: ignore[arg-type]

    def steps(self, loader: Any, epochs: int) -> int:
        """Returns how many steps of the optimizer so many epochs of a job.loader() have, for a learning-rate schedule.
        With train.global_batch_size, the number is the same on any number of ranks, unlike that of len(loader).
        Raises ConfigError if the loader has no length."""
        from clusterdp.train.loop.micro_batches import steps_of

        return epochs * steps_of(loader, self.this_rank, self.train)

    def loop(
        self,
        loader: Iterable[Batch],
        state: Mapping[str, Any],
        *,
        epochs: int = 1,
        accumulate: int | None = None,
        every_steps: int | None = None,
        every_s: float | None = None,
        move: bool | Callable[[Any], Any] = False,
        max_steps: int | None = None,
        limit_batches: int | None = None,
        forget: Collection[str] = (),
        name: str = "",
        continues: Loop[Any] | None = None,
    ) -> Loop[Batch]:
        """Returns a Loop: the batches to train on, from the run's position on.

        name: the name of this phase, if the program trains more than once; see Phases. continues: the previous loop, if
        this loop continues it to more epochs.
        accumulate: batches per step of the optimizer. accumulate, every_steps and every_s are by default
        train.accumulate, checkpoint.every_steps and checkpoint.every_s of the config. move: whether the next batch is
        moved to this rank's device during the current step. If move is a function, it also transforms each batch on the
        device, for example to normalised floats. See Prefetcher. max_steps: the loop ends after this step (batch), like
        the run after train.max_steps, and leaves out the rest of the epoch. limit_batches: an epoch's most batches.
        With train.global_batch_size, both count steps of the optimizer, whose batches are micro-batches.
        forget: the names of variables of the program that begin anew in each attempt; see Variables.
        """
        check_can_be_read_again("loader", loader, epochs if epochs < sys.maxsize else 1)
        saving = self.saving
        if accumulate is None:
            accumulate = self.train.accumulate
        if self.profile.steps is not None:
            epochs = sys.maxsize  # as many epochs as profile.steps steps take
        if every_steps is None and every_s is None:
            every_steps, every_s = saving.every_steps, saving.every_s
        if "amp" in self.__dict__:  # the program has used job.amp
            self.amp.check_kept_in(state)
        from clusterdp.train.loop.loop import Loop

        every = {"every_steps": every_steps, "every_s": every_s}
        limits: dict[str, Any] = {"max_steps": max_steps, "limit_batches": limit_batches}
        phase: dict[str, Any] = {"name": name, "continues": continues, "forget": forget, **limits}
        phase |= {"global_batch_size": self.train.global_batch_size, "by_tree": self.train.exact == "any_ranks"}
        return Loop(self.phases, loader, state, epochs=epochs, accumulate=accumulate, move=move, **every, **phase)  # type: ignore[arg-type]

    def checkpointer(self, state: Mapping[str, Any], *, beside: str | None = None) -> Checkpointer | None:
        """Returns a Checkpointer for the state of your own loop. None if the run has no folder and no checkpoint.url.

        beside: a name for a Checkpointer apart from the run's. This one keeps only its newest checkpoint, in folder
        `<url>-<beside>`.
        """
        saving = self.saving
        if saving.url is None:
            return None
        from clusterdp.checkpoint import Checkpointer
        from clusterdp.storage import MemoryStorage, RetryPolicy, open_storage

        def storage(url: str) -> Storage:
            return open_storage(
                url, retry_policy=RetryPolicy(saving.timeout_s, saving.retry_s), **saving.storage_options
            )

        common: dict[str, Any] = {
            "group": self.group.control,
            "attempt": self.attempt,
            "may_commit": self._claim.is_newest if self._claim else lambda: True,
        }
        if beside is not None:
            return Checkpointer(storage(f"{saving.url.rstrip('/')}-{beside}"), state, keep_last=1, **common)
        local = self._run.checkpoints if self._run is not None and saving.keep_local else None
        return Checkpointer(
            storage(saving.url),
            state,
            keep_last=saving.keep_last,
            keep_every=saving.keep_every,
            local=local,
            keep_local=saving.keep_local or 1,
            check_replicas_every=saving.check_replicas_every,
            on_commit=self.record.committed,
            memory=MemoryStorage.of_this_node(saving.url) if saving.memory_s != 0 else None,
            **common,
        )

    def log(self, **values: Any) -> None:
        """Writes a record to the metrics, on rank 0: a result such as an accuracy. For losses, use loop.log()."""
        self.record.log(**values)

    @property
    def tensorboard(self) -> Any:
        """TensorBoard's SummaryWriter on rank 0, for images, histograms and texts, if `metrics.to` has tensorboard;
        else None. Pass job.step as their step."""
        boards = (getattr(sink, "writer_at", None) for sink in self.metrics.sinks)
        step = self.step if self.phases.begun else None
        return next((writer_at(step) for writer_at in boards if writer_at is not None), None)

    def event(self, event: str, **fields: Any) -> None:
        """Writes a line to the run's ledger, on rank 0. While the disk is full, the line is lost."""
        self.record.event(event, **fields)

    def _stopwatch(self) -> Stopwatch:
        trace = self.profile.trace
        if trace.start is None or self.rank not in trace.ranks or self._run is None:
            return Stopwatch()
        from clusterdp.train.profile.tracer import Tracer, TracingStopwatch

        file = self._run.attempt(self.attempt).trace(self.rank)
        return TracingStopwatch(Tracer(file, start=trace.start, steps=trace.steps))

    def _profile(self) -> Profile | None:
        if self.profile.steps is None:
            return None
        from clusterdp.train.profile.profiling import Profile

        return Profile(self.this_rank, self.record, self.stopwatch, self.profile.steps, self.profile.find)


_running: list[JobHandle] = []


def call(function: Callable[..., Any], job: JobHandle, params: Mapping[str, Any]) -> Any:
    """Calls function(job, **params). Meanwhile, own_job() returns this handle."""
    _running.append(job)
    try:
        return function(job, **params)
    finally:
        _running.pop()


def running_job() -> JobHandle | None:
    """Returns the handle of the function that the worker or launch() is calling."""
    return _running[-1] if _running else None
