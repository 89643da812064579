"""JobHandle: what the user's function gets to know and to use. `def main(job, **params)`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from clusterdp.checkpoint import Checkpointer, Commit
from clusterdp.rundir import Ledger, RunDir, write_durably
from clusterdp.train.buckets import settle
from clusterdp.train.claim import Claim
from clusterdp.train.group import Group
from clusterdp.train.loop import Loop
from clusterdp.train.metrics import MetricLog
from clusterdp.train.sampler import ResumableSampler
from clusterdp.train.settings import Settings
from clusterdp.train.stop import StopSignal
from clusterdp.train.word import ControlWord

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
        self.group = group
        self.run_dir: Path | None = settings.run_dir
        self.attempt = attempt
        self.seed = settings.seed
        self.params: Mapping[str, Any] = settings.params
        self.stop = stop
        self.word = ControlWord(group.control_word_group, stop)
        self.step = 0  # the loop's; what the outcome says
        self._settings = settings
        self._claim = claim
        self._run = RunDir(settings.run_dir) if settings.run_dir else None
        self._ledger: Ledger | None = None
        self.metrics = MetricLog(None)
        if self._run is not None and self.rank == 0:
            self._run.attempt(attempt).path.mkdir(parents=True, exist_ok=True)  # if no batch script has
            self._ledger = Ledger(self._run, attempt, "rank0")
            self.metrics = MetricLog(self._run.metrics / f"{attempt}.jsonl")

    def wrap(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """The model on this rank's device, in DDP with its buckets settled. options: DistributedDataParallel's own."""
        model = model.to(self.device)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model  # DDP refuses what has nothing to train
        devices = [self.device] if self.device.type == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=devices, **options)
        settle(wrapped)
        return wrapped

    def loader(
        self, dataset: Dataset[Any], batch_size: int, *, shuffle: bool = True, drop_last: bool = False, **options: Any
    ) -> DataLoader[Any]:
        """A DataLoader over this rank's share, at a position that is saved. batch_size: of one rank."""
        sampler = ResumableSampler(
            dataset,  # type: ignore[arg-type]
            rank=self.rank,
            world_size=self.world_size,
            shuffle=shuffle,
            seed=self.seed,
            drop_last=drop_last,
        )
        # Its own generator: iter() would otherwise draw the workers' seeds from the stream that dropout uses. What the
        # workers draw themselves is resumed by epochs, not by samples: augmentations should be seeded by the sample.
        generator = torch.Generator()
        options.setdefault("pin_memory", self.device.type == "cuda")
        return DataLoader(dataset, batch_size, sampler=sampler, drop_last=drop_last, generator=generator, **options)

    def loop(
        self,
        loader: Iterable[Batch],
        state: Mapping[str, Any],
        *,
        epochs: int = 1,
        every_steps: int | None = None,
        every_s: float | None = None,
    ) -> Loop[Batch]:
        """Batches to train on, from wherever the run stands. See Loop. every_*: default is the config's checkpoint.*"""
        saving = self._settings.checkpoint
        if every_steps is None and every_s is None:
            every_steps, every_s = saving.every_steps, saving.every_s
        return Loop(self, loader, state, epochs=epochs, every_steps=every_steps, every_s=every_s)

    def checkpointer(self, state: Mapping[str, Any]) -> Checkpointer | None:
        """For the state of a loop of your own. None if the run has no folder and no checkpoint.url."""
        saving = self._settings.checkpoint
        if saving.url is None:
            return None
        return Checkpointer(
            saving.url,
            state,
            group=self.group.control,
            keep_last=saving.keep_last,
            keep_every=saving.keep_every,
            attempt=self.attempt,
            may_commit=self._claim.is_newest if self._claim else lambda: True,
            on_commit=self._committed,
        )

    @property
    def resume_step(self) -> int | None:
        return self._settings.resume_step

    def log(self, **values: Any) -> None:
        """A record in the metrics, by rank 0: a result such as an accuracy. For losses of steps: loop.log."""
        self.metrics.write(step=self.step, **values)

    def event(self, event: str, **fields: Any) -> None:
        """A line in the run's ledger, by rank 0."""
        if self._ledger is not None:
            self._ledger.write(event, **fields)

    def _committed(self, commit: Commit) -> None:
        """On rank 0, after each commit."""
        if self._run is not None:
            write_durably(self._run.attempt(self.attempt).saved, f"{commit.step}\n")
        self.event("saved", step=commit.step, seconds=round(commit.seconds, 4), bytes=commit.bytes)


def new_attempt_name() -> str:
    """For a run without Slurm; sorts by time among its like."""
    return f"local.{time.time_ns() // 1_000_000}"
