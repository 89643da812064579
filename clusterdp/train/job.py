"""JobHandle: what the user's function gets to know and to use. `def main(job, **params)`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from clusterdp.config import CheckpointConfig, MetricsConfig, ProfileConfig, TrainConfig
from clusterdp.errors import ConfigError
from clusterdp.rundir import Ledger, RunDir, write_durably
from clusterdp.train.argument_names import LOADER, check_words
from clusterdp.train.data.loader_defaults import (
    check_lasts,
    cpus_of_rank,
    default_workers,
    gives_batches,
    loader_defaults,
    objections,
)
from clusterdp.train.data.sampler import ResumableSampler
from clusterdp.train.data.seeded import SeededDataset
from clusterdp.train.data.shard_loader import ShardLoader
from clusterdp.train.data.shards import Shards
from clusterdp.train.data.tensor_loader import TensorLoader, in_columns, rows_of
from clusterdp.train.dist.claim import Claim
from clusterdp.train.dist.group import Group, own_devices
from clusterdp.train.dist.shared_flags import SharedFlags
from clusterdp.train.dist.stop import StopSignal
from clusterdp.train.loop.phases import Phases
from clusterdp.train.output.best_effort import BestEffortFile, retry_while_full
from clusterdp.train.output.metric_log import MetricLog
from clusterdp.train.output.say import say
from clusterdp.train.profile.diagnosis import NOTHING
from clusterdp.train.profile.stopwatch import Stopwatch
from clusterdp.train.settings import Settings

if TYPE_CHECKING:  # a function that keeps to its own loop need not wait for these
    from clusterdp.checkpoint import Checkpointer, Commit
    from clusterdp.storage import Storage
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.optim.amp import Amp
    from clusterdp.train.optim.batch_size import BatchSize
    from clusterdp.train.optim.nan_guard import NanGuard

WORTH_A_LINE_S = 60.0  # of training: of less than that nobody wants to hear where the time went unless they ask
Batch = TypeVar("Batch")


class JobHandle:
    """One for each rank. Everything here may be left unused by a function that has its own ways."""

    def __init__(self, settings: Settings, group: Group, stop: StopSignal, attempt: str, claim: Claim | None = None):
        place = group.rendezvous
        self.rank = place.rank
        self.world_size = place.world_size
        self.local_rank = place.local_rank
        self.local_world_size = place.local_world_size
        self.node_rank = place.node_rank
        self.device = group.device
        self.devices = own_devices(group)  # all of this rank's, for a model that is split over them
        self.group = group
        self.run_dir: Path | None = settings.run_dir
        self.attempt = attempt
        self.seed = settings.train.seed
        self.params: Mapping[str, Any] = settings.params
        self.stop = stop
        self.flags = SharedFlags(group.flags_group, stop)
        self.step = 0  # of all loops; what the outcome says
        self.wrapped: WeakSet[torch.nn.Module] = WeakSet()
        self._settings = settings
        self._claim = claim
        self.phases = Phases(self, settings.resume_step)
        self._run = RunDir(settings.run_dir) if settings.run_dir else None
        self._ledger: Ledger | None = None
        self._expendable: dict[Path, BestEffortFile] = {}
        self.metrics = MetricLog(None)
        self.stopwatch = self._stopwatch()
        if self._run is not None and self.rank == 0:
            folder = self._run.attempt(attempt).path
            retry_while_full(lambda: folder.mkdir(parents=True, exist_ok=True), folder)  # if no batch script has
            self._ledger = Ledger(self._run, attempt, "rank0")
            self.metrics = MetricLog(self._run.metrics / f"{attempt}.jsonl", settings.metrics.every_s)
            if settings.metrics.to:
                from clusterdp.train.output.sinks import open_sinks

                self.metrics.sinks += open_sinks(settings.metrics.to, self._run, settings.metrics.options)

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """The model on this rank's device, as the config's `train` has it; in DDP, with its buckets settled, if that
        says nothing. Collective, and before the optimizer is made.

        options: DistributedDataParallel's own; the config's come first.
        """
        from clusterdp.train.parallel import strategy

        wrapped = strategy.wrap(model, self.group, self.train, self.amp, options)
        self.wrapped.add(wrapped)
        return wrapped

    @property
    def train(self) -> TrainConfig:
        """The config's `train`."""
        return self._settings.train

    @cached_property
    def amp(self) -> Amp:
        """As the config's train.amp has it."""
        from clusterdp.train.optim.amp import Amp

        return Amp(device=self.device, **asdict(self.train.amp))

    def nan_guard(self, model: torch.nn.Module) -> NanGuard | None:
        """For Amp.step(nan_guard=...), as the config's train.on_nan has it; None if nobody is to look."""
        from clusterdp.train.optim.nan_guard import NanGuard

        on_nan = self.train.on_nan
        return NanGuard(model, self.group, on_nan, step=lambda: self.step + 1) if on_nan is not None else None

    def batch_size(self, per_rank: int) -> BatchSize:
        """What a step sees, over all ranks and the config's train.accumulate. Rank 0 prints it."""
        from clusterdp.train.optim.batch_size import BatchSize

        batch = BatchSize(per_rank, self.world_size, self.train.accumulate)
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
        """A DataLoader over this rank's share, at a position that is saved. batch_size: of one rank; None: each sample
        of the data set is a batch already.

        sampler: draws the order of all ranks' samples, as torch's WeightedRandomSampler does; shuffle is then its own.
        seed_samples: augmentations depend on seed, epoch and sample alone; see SeededDataset, which wraps `dataset`.
        Tensors and arrays, in a tuple or a mapping too, a TensorDataset or a Subset of one are sliced by the batch,
        unless options say how samples are read. Shards are dealt out by the file, see there. Any other iterable data
        set shards itself, by job.rank and job.world_size; see Batches for its place.
        ConfigError on all ranks alike if there would be no batch at all.
        options: DataLoader's; loading.loader_defaults() says what they are otherwise.
        """
        check_words("loader", options, LOADER)
        if isinstance(dataset, Shards):
            if batch_size is None:
                raise ConfigError("batch_size: None, and Shards give single samples. Say how many make a batch.")
            options = {"num_workers": default_workers(), "pin_memory": self.device.type == "cuda", **options}
            options |= {"rank": self.rank, "world_size": self.world_size, "seed": self.seed, "drop_last": drop_last}
            return ShardLoader(dataset, batch_size, **options)  # type: ignore[return-value]  # is used as one
        dataset = in_columns(dataset)
        given = {"batch_size": batch_size, "drop_last": drop_last, **options}
        options = loader_defaults(self, dataset, given)
        if isinstance(dataset, IterableDataset):
            if batch_size is not None and gives_batches(dataset):
                raise ConfigError(
                    f"batch_size: this {type(dataset).__name__} makes batches itself. Pass batch_size=None."
                )
            with objections():
                return DataLoader(dataset, **options)
        share = {"rank": self.rank, "world_size": self.world_size, "seed": self.seed, "drop_last": drop_last}
        if sampler is None:
            ours = ResumableSampler(dataset, shuffle=shuffle, **share)  # type: ignore[arg-type]
        else:
            ours = ResumableSampler.over(sampler, **share)
        if ours.size == 0 or (drop_last and len(ours) < (batch_size or 1)):
            raise ConfigError(
                f"loader: {ours.size} samples are no batch of {batch_size} for each of {self.world_size} ranks"
                f"{', and drop_last drops what is less' if drop_last else ''}. Use more data, fewer ranks, smaller "
                "batches, or drop_last=False."
            )
        if (rows := rows_of(dataset, given)) is not None:
            with objections():
                return TensorLoader(dataset, rows, ours, batch_size, drop_last, options["pin_memory"])
        collate_fn = options.get("collate_fn")
        if seed_samples and options["num_workers"]:  # whose numbers do not depend on how old a worker is
            options.setdefault("persistent_workers", True)
        if seed_samples and (type(dataset) is not TensorDataset or collate_fn):  # which draws nothing
            dataset = SeededDataset(dataset, self.seed)
            ours.numbered = sampler is not None
            if collate_fn is not None:
                options["collate_fn"] = dataset.collation(collate_fn)
        with objections():
            return DataLoader(dataset, sampler=ours, **options)

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
        name: str = "",
        continues: Loop[Any] | None = None,
    ) -> Loop[Batch]:
        """Batches to train on, from wherever the run stands. See Loop.

        name: of this phase, where the program trains more than once; see Phases. continues: the loop before, which this
        one goes on from, to more epochs.
        accumulate: batches to a step of the optimizer. Defaults: the config's train.accumulate, checkpoint.every_*
        move: to this rank's device, the next batch while this one is trained on; a function then makes of each what the
        model takes, such as normalised floats. See Prefetcher.
        """
        check_lasts("loader", loader, epochs)
        saving = self._settings.checkpoint
        if accumulate is None:
            accumulate = self.train.accumulate
        if self.profile.steps is not None:
            epochs = sys.maxsize  # as many as those steps take
        if every_steps is None and every_s is None:
            every_steps, every_s = saving.every_steps, saving.every_s
        if "amp" in self.__dict__:  # it has been used
            self.amp.check_kept_in(state)
        from clusterdp.train.loop.loop import Loop

        every = {"every_steps": every_steps, "every_s": every_s}
        phase: dict[str, Any] = {"name": name, "continues": continues}
        return Loop(self, loader, state, epochs=epochs, accumulate=accumulate, move=move, **every, **phase)  # type: ignore[arg-type]

    def checkpointer(self, state: Mapping[str, Any], *, beside: str | None = None) -> Checkpointer | None:
        """For the state of a loop of your own. None if the run has no folder and no checkpoint.url.

        beside: not the run's checkpoints, but one that stays as it is until it is saved anew, in a folder of this name.
        """
        saving = self._settings.checkpoint
        if saving.url is None:
            return None
        from clusterdp.checkpoint import Checkpointer
        from clusterdp.storage import RetryPolicy, open_storage

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
            on_commit=self._committed,
            **common,
        )

    @property
    def saving(self) -> CheckpointConfig:
        """The config's `checkpoint`."""
        return self._settings.checkpoint

    @property
    def profile(self) -> ProfileConfig:
        """The config's `profile`: a loop ends after so many steps."""
        return self._settings.profile

    def for_measuring(self, params: Mapping[str, Any]) -> JobHandle:
        """Another one, for a training that is begun to be measured, and of which nothing is kept."""
        settings = replace(self._settings, params=params, checkpoint=CheckpointConfig(), metrics=MetricsConfig())
        return JobHandle(settings, self.group, self.stop, self.attempt)

    @property
    def is_kept(self) -> bool:
        """Whether the run has a place for checkpoints."""
        return self.saving.url is not None

    def log(self, **values: Any) -> None:
        """A record in the metrics, by rank 0: a result such as an accuracy. For losses of steps: loop.log."""
        self.metrics.write(step=self.step, **self.phases.named, **values)

    def event(self, event: str, **fields: Any) -> None:
        """A line in the run's ledger, by rank 0; none while the disk is full."""
        if self._ledger is not None:
            with self._may_lose(self._ledger.path):
                self._ledger.write(event, **fields)

    def _may_lose(self, path: Path) -> BestEffortFile:
        return self._expendable.setdefault(path, BestEffortFile(path))

    def _stopwatch(self) -> Stopwatch:
        trace = self.profile.trace
        if trace.start is None or self.rank not in trace.ranks or self._run is None:
            return Stopwatch()
        from clusterdp.train.profile.tracer import Tracer, TracingStopwatch

        file = self._run.attempt(self.attempt).trace(self.rank)
        return TracingStopwatch(Tracer(file, start=trace.start, steps=trace.steps))

    def report_times(self, loader: Any) -> dict[str, Any] | None:
        """Collective, at the end of a loop: where the steps' time went, in the run folder and in words."""
        workers = getattr(loader, "num_workers", None)
        report = self.stopwatch.report(self.group, workers=workers, cpus=cpus_of_rank(self.local_world_size))
        if report is None or self.rank != 0:
            return report
        if self._run is not None:
            times = self._run.attempt(self.attempt).times
            with self._may_lose(times):
                write_durably(times, json.dumps(report, indent=1) + "\n")
        spent_s = report["steps"] * sum(report["ranks"][0]["ms"].values()) / 1000
        if report["diagnosis"] != [NOTHING] and spent_s >= WORTH_A_LINE_S:
            say("clusterdp: " + " ".join(report["diagnosis"]))
        return report

    def _committed(self, commit: Commit) -> None:
        """On rank 0, after each commit."""
        if self._run is not None:
            saved = self._run.attempt(self.attempt).saved
            with self._may_lose(saved):
                write_durably(saved, f"{commit.step}\n")
        told = {"seconds": round(commit.seconds, 4), "bytes": commit.bytes, **self.phases.named}
        self.event("saved", step=commit.step, **told)


def new_attempt_name() -> str:
    """For a run without Slurm; sorts by time among its like."""
    return f"local.{time.time_ns() // 1_000_000}"
