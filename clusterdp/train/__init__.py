"""What runs on the compute nodes: from the environment of a process to a training that stops and resumes exactly.

    worker        the process of one rank, from its environment to the outcome of its attempt
    settings      what it needs of the config and of the batch script's exports
    entry         the user's function, and whether it takes its params
    rendezvous    where the ranks meet
    group         process group, device, seeds
    peers         when one rank fails, all end
    claim         one live attempt a run folder
    stop          what signals this rank has seen                       no torch
    word          what all ranks know, at the same step
    job           the handle that the user's function gets
    loop          batches, restored, saved and stopped
    phases        the loops of one job, each with a position and a state of its own
    saves         when it saves, and what a save that fails comes to
    feed          the batches of a loader, from where training stands in it
    position      where that is, as state
    sampler       which samples, in which order, from where
    shards        samples in many files, each read by one rank
    shardloader   batches of them
    tensorloader  batches of what lies in tensors
    seeded        augmentations that depend on sample and epoch alone
    strategy      what becomes of a model so that many devices train it: ddp, fsdp, hsdp, dp
    ddp           DistributedDataParallel: options, communication hooks, unused parameters by name
    powersgd      the hook that has a state
    fsdp          FSDP2, and its hybrid form
    split         a model over several devices of one rank
    lockstep      whether all ranks run the same parts of a sharded model
    even_batches        as many items on every rank, for it
    sameness      whether all ranks have built the same model
    buckets       DDP's, settled: the order of its sums is part of exactness
    amp           mixed precision, O0 to O3 and bf16
    masters       fp16 weights, and the fp32 copies that the optimizer steps on
    accumulation  several batches to a step
    batchsize     what a step sees in all, and its learning rate
    schedule      warm-up and cosine
    finite        what becomes of a loss that is NaN
    ema           the average of the weights
    syncbn        BatchNorm over the batches of all ranks
    activations   gradient checkpointing: computed again, not kept
    metrics       numbers from the loop, without waiting for the GPU
    sinks         and on to TensorBoard, W&B, MLflow
    meters        means, sums and extremes of an epoch, over all ranks
    stopwatch     where the time goes, by rank
    diagnosis     and what that means, in words
    profiling     what becomes of a run that is to be measured
    sizes         the batch sizes that were tried
    workerfinder  what a loader gives with 0, 1, 2, 4, ... workers
    tracer        some steps as torch.profiler sees them
    graphs        a loss that is kept with its graph is noticed

And all of it put together:

    trainer       fit, evaluate, predict, summary
    trainstep     what it does with a batch
    arguments     as others have them, and what they are here
    best          the model as it was when it was best
    callbacks     early stopping, the best model: functions of (trainer, row)
    data          data sets dealt out to the ranks
    loading       what a DataLoader is best told
    prefetch      batches on the device before they are needed
    scores        the loss and the metrics of an epoch
    history       a row an epoch, over all attempts
    predictions   of all ranks, in the order of the data
    progress      a line on the terminal
    layers        the model as a table
    alone         the job of a script without a worker

Each piece is usable alone. A plain PyTorch loop becomes preemptible and exactly resuming by the numbered lines; it runs
under srun, torchrun and plain python (tests/train/raw_loop.py is this very script):

    stop = StopSignal().install()                                             # 1  before anything slow
    group = Group.start(Rendezvous.find())                                    # 2
    model = DistributedDataParallel(Net().to(group.device))
    settle_buckets(model)                                                             # 3
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
            agreed = flags.tick()                                              # 12
            if agreed and agreed.stop:
                checkpointer.save(step)
                sys.exit(75)
    flags.drain()
    group.close()

With accumulated gradients, tick (12) where the optimizer steps. SeededDataset(data), told of the epoch as the sampler
is, makes augmentations resume exactly, too.

Names load when they are first used, so that a process can listen to signals before torch is in memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.train.data.even_batches import even_batches
    from clusterdp.train.data.prefetch import Prefetcher
    from clusterdp.train.data.sampler import ResumableSampler
    from clusterdp.train.data.seeded import SeededDataset
    from clusterdp.train.data.shards import Shards, read_tar
    from clusterdp.train.dist.group import Group, seed_everything
    from clusterdp.train.dist.rendezvous import Rendezvous
    from clusterdp.train.dist.shared_flags import SharedFlags
    from clusterdp.train.dist.stop import Stopped, StopSignal
    from clusterdp.train.job import JobHandle
    from clusterdp.train.loop.epoch import Epoch
    from clusterdp.train.loop.history import History
    from clusterdp.train.loop.loop import Loop
    from clusterdp.train.optim.accumulation import gradient_sync, windows
    from clusterdp.train.optim.amp import Amp
    from clusterdp.train.optim.batch_size import BatchSize
    from clusterdp.train.optim.ema import Ema
    from clusterdp.train.optim.lr_schedule import warmup_cosine
    from clusterdp.train.optim.nan_guard import NanGuard
    from clusterdp.train.parallel.activation_checkpointing import recompute
    from clusterdp.train.parallel.buckets import settle_buckets
    from clusterdp.train.parallel.model_parallel import ModelParallel, in_parts
    from clusterdp.train.parallel.syncbn import sync_batchnorm
    from clusterdp.train.process.own_job import own_job
    from clusterdp.train.profile.tracer import Tracer
    from clusterdp.train.profile.worker_finder import find_workers
    from clusterdp.train.trainer.callbacks import early_stopping, keep_best, plateau
    from clusterdp.train.trainer.meters import Meters
    from clusterdp.train.trainer.trainer import Trainer

_HOMES = {
    "Amp": "optim.amp",
    "BatchSize": "optim.batch_size",
    "SharedFlags": "dist.shared_flags",
    "Ema": "optim.ema",
    "Epoch": "loop.epoch",
    "NanGuard": "optim.nan_guard",
    "Group": "dist.group",
    "History": "loop.history",
    "JobHandle": "job",
    "Loop": "loop.loop",
    "Meters": "trainer.meters",
    "Prefetcher": "data.prefetch",
    "Rendezvous": "dist.rendezvous",
    "ResumableSampler": "data.sampler",
    "SeededDataset": "data.seeded",
    "Shards": "data.shards",
    "ModelParallel": "parallel.model_parallel",
    "StopSignal": "dist.stop",
    "Stopped": "dist.stop",
    "Tracer": "profile.tracer",
    "Trainer": "trainer.trainer",
    "early_stopping": "trainer.callbacks",
    "even_batches": "data.even_batches",
    "find_workers": "profile.worker_finder",
    "gradient_sync": "optim.accumulation",
    "in_parts": "parallel.model_parallel",
    "keep_best": "trainer.callbacks",
    "own_job": "process.own_job",
    "plateau": "trainer.callbacks",
    "read_tar": "data.shards",
    "recompute": "parallel.activation_checkpointing",
    "seed_everything": "dist.group",
    "settle_buckets": "parallel.buckets",
    "sync_batchnorm": "parallel.syncbn",
    "warmup_cosine": "optim.lr_schedule",
    "windows": "optim.accumulation",
}
__all__ = [
    "Amp",
    "BatchSize",
    "Ema",
    "Epoch",
    "Group",
    "History",
    "JobHandle",
    "Loop",
    "Meters",
    "ModelParallel",
    "NanGuard",
    "Prefetcher",
    "Rendezvous",
    "ResumableSampler",
    "SeededDataset",
    "Shards",
    "SharedFlags",
    "StopSignal",
    "Stopped",
    "Tracer",
    "Trainer",
    "early_stopping",
    "even_batches",
    "find_workers",
    "gradient_sync",
    "in_parts",
    "keep_best",
    "own_job",
    "plateau",
    "read_tar",
    "recompute",
    "seed_everything",
    "settle_buckets",
    "sync_batchnorm",
    "warmup_cosine",
    "windows",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"clusterdp.train.{_HOMES[name]}"), name)
