"""The code that runs on the compute nodes: from the environment of a process to a training that stops and resumes
exactly.

    process/        from the environment of that process to the outcome of its attempt
    trainer/        a whole training in one object
    loop/           a loop over batches that restores, saves and stops
    data/           from a data set to the batches of one rank
    optim/          precision, accumulation, clipping, averages
    parallel/       a model on many devices
    ranks/          the ranks: rendezvous, agreement, stop, failure
    profile/        the time of each part of a step
    witness/        what followed a save, to compare a resume with
    preflight/      the check of each node before the ranks start
    output/         metrics, events, the log
    hang/           notices that no rank makes progress, and reports which rank is behind

Each module is usable alone. In the script below, the numbered lines make a plain PyTorch loop preemptible, with an
exact resume. The script runs under srun, torchrun and plain python (tests/train/raw_loop.py holds the same script):

    stop = StopSignal().install()                                             # 1  before anything slow
    group = Group.start(Rendezvous.find())                                    # 2
    model = DistributedDataParallel(Net().to(group.device))
    settle_buckets(model)                                                     # 3
    sampler = ResumableSampler(data, seed=1)                                  # 4
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    state = {"model": model, "optimizer": optimizer, "sampler": sampler}      # 5
    checkpointer = Checkpointer(folder, state, group=group.control)           # 6
    flags = SharedFlags(group.flags_group, stop)                              # 7
    restored = checkpointer.restore()                                         # 8
    step = restored.step if restored else 0
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        with stop.shielded():                                                 # 9  the loader's workers
            batches = iter(loader)
        if restored:                                                          # 10 last: iter() draws random numbers
            checkpointer.restore_rng()
            restored = None
        for x, y in batches:
            ...                                                               #    forward, backward, step
            step += 1
            sampler.advance(len(x))                                           # 11
            agreed = flags.tick()                                             # 12
            if agreed and agreed.stop:
                checkpointer.save(step)
                sys.exit(75)
    flags.drain()
    group.close()

With accumulated gradients, call tick() (12) only where the optimizer steps. SeededDataset(data), whose set_epoch() is
called like the sampler's, makes augmentations resume exactly, too.

JobHandle.loop() does the work of all numbered lines, and returns a Loop; Loop.epochs() yields each Epoch.
job.nan_guard() returns a NanGuard, move=True uses a Prefetcher, and the config's train.seed is passed to
seed_everything(). A Trainer runs on a Loop: fit() returns its History, and calls early_stopping and plateau after each
epoch.

Each name of this package is imported when it is first used, so that a process can handle signals before torch is in
memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.train.data.even_batches import even_batches as even_batches
    from clusterdp.train.data.prefetch import Prefetcher as Prefetcher
    from clusterdp.train.data.sampler import ResumableSampler as ResumableSampler
    from clusterdp.train.data.seeded import SeededDataset as SeededDataset
    from clusterdp.train.data.shards import Shards as Shards
    from clusterdp.train.data.shards import read_tar as read_tar
    from clusterdp.train.job import JobHandle as JobHandle
    from clusterdp.train.loop.history import History as History
    from clusterdp.train.loop.loop import Loop as Loop
    from clusterdp.train.loop.position import Epoch as Epoch
    from clusterdp.train.optim.accumulation import gradient_sync as gradient_sync
    from clusterdp.train.optim.accumulation import windows as windows
    from clusterdp.train.optim.amp import Amp as Amp
    from clusterdp.train.optim.batch_size import BatchSize as BatchSize
    from clusterdp.train.optim.ema import Ema as Ema
    from clusterdp.train.optim.lr_schedule import warmup_cosine as warmup_cosine
    from clusterdp.train.optim.nan_guard import NanGuard as NanGuard
    from clusterdp.train.optim.swa import Swa as Swa
    from clusterdp.train.parallel.activation_checkpointing import recompute as recompute
    from clusterdp.train.parallel.ddp import settle_buckets as settle_buckets
    from clusterdp.train.parallel.model_parallel import ModelParallel as ModelParallel
    from clusterdp.train.parallel.model_parallel import in_parts as in_parts
    from clusterdp.train.parallel.model_parallel import place as place
    from clusterdp.train.parallel.syncbn import sync_batchnorm as sync_batchnorm
    from clusterdp.train.process.own_job import own_job as own_job
    from clusterdp.train.profile.tracer import Tracer as Tracer
    from clusterdp.train.profile.worker_finder import find_workers as find_workers
    from clusterdp.train.ranks.group import Group as Group
    from clusterdp.train.ranks.group import seed_everything as seed_everything
    from clusterdp.train.ranks.rendezvous import Rendezvous as Rendezvous
    from clusterdp.train.ranks.shared_flags import SharedFlags as SharedFlags
    from clusterdp.train.ranks.stop import Stopped as Stopped
    from clusterdp.train.ranks.stop import StopSignal as StopSignal
    from clusterdp.train.trainer.callbacks import early_stopping as early_stopping
    from clusterdp.train.trainer.callbacks import keep_best as keep_best
    from clusterdp.train.trainer.callbacks import plateau as plateau
    from clusterdp.train.trainer.meters import Meters as Meters
    from clusterdp.train.trainer.predictions import load_predictions as load_predictions
    from clusterdp.train.trainer.trainer import Trainer as Trainer

_PUBLIC = """
    data.even_batches.even_batches data.prefetch.Prefetcher data.sampler.ResumableSampler data.seeded.SeededDataset
    data.shards.Shards data.shards.read_tar job.JobHandle loop.history.History loop.loop.Loop loop.position.Epoch
    optim.accumulation.gradient_sync optim.accumulation.windows optim.amp.Amp optim.batch_size.BatchSize
    optim.ema.Ema optim.lr_schedule.warmup_cosine optim.nan_guard.NanGuard optim.swa.Swa
    parallel.activation_checkpointing.recompute parallel.ddp.settle_buckets parallel.model_parallel.ModelParallel
    parallel.model_parallel.in_parts parallel.model_parallel.place parallel.syncbn.sync_batchnorm
    process.own_job.own_job profile.tracer.Tracer profile.worker_finder.find_workers ranks.group.Group
    ranks.group.seed_everything ranks.rendezvous.Rendezvous ranks.shared_flags.SharedFlags ranks.stop.StopSignal
    ranks.stop.Stopped trainer.callbacks.early_stopping trainer.callbacks.keep_best trainer.callbacks.plateau
    trainer.meters.Meters trainer.predictions.load_predictions trainer.trainer.Trainer
"""
_HOMES = {name: module for module, _, name in (path.rpartition(".") for path in _PUBLIC.split())}


if not TYPE_CHECKING:
    __all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clusterdp.train.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Returns the names that pydoc and help() list."""
    return [*globals(), *_HOMES]
