"""Profiling: what becomes of a run that is to be measured, as `clusterdp profile` and the config's `profile` want it.

steps             the run ends after so many, with where their time went in times.json; nothing comes after: no
                  evaluation, no save
find: workers     then its loader is read with 0, 1, 2, 4, ... workers
find: batch-size  the entry runs again and again, for so many steps, with batch_size doubled each time
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from clusterdp.errors import ConfigError, TrainError
from clusterdp.rundir import Attempt, RunDir, write_durably
from clusterdp.train.dist.group import seed_everything
from clusterdp.train.output.say import say
from clusterdp.train.profile.batch_size_finder import BatchSizeRow, BatchSizeTable
from clusterdp.train.profile.worker_finder import find_workers

if TYPE_CHECKING:
    from clusterdp.train.job import JobHandle
    from clusterdp.train.loop.batches import Batches

PARAMETER = "batch_size"


class Profiled(BaseException):
    """All ranks have done the steps that were asked for. No Exception, so that user code lets it pass, as Stopped.

    report: as Stopwatch makes it, or None. batch: samples of one rank to a step, on average. full: of a batch that is
    not an epoch's last.
    """

    def __init__(self, report: dict[str, Any] | None, batch: float, full: int):
        super().__init__()
        self.report, self.batch, self.full = report, batch, full


def end(job: JobHandle, feed: Batches[Any]) -> NoReturn:
    """Collective, after the last step."""
    job.flags.drain()
    feed.close()
    report = job.report_times(feed.loader)
    job.metrics.flush()
    batch = _mean_batch(feed)
    if job.profile.find == "workers":
        job.event("trying", what="num_workers")
        needed = batch / _seconds(report, without="data") if report else None
        found = find_workers(feed.loader, job.group, needed=needed)
        _tell(job, found.lines())
    raise Profiled(report, batch, feed.batch_size)


def find_batch_size(function: Callable[..., Any], job: JobHandle, **params: Any) -> None:
    """Collective: the entry from its beginning, with twice the batch each time, until that is of no more use.

    A rank that runs out of memory ends the search by ending the attempt, for the others may be waiting for it in the
    middle of a step: it leaves table and outcome behind, and they go as they do when a rank fails.
    """
    size = _first_size(function, params)
    sizes = BatchSizeTable(job.world_size, on_gpu=job.device.type == "cuda")
    while sizes.go_on(size):
        job.event("trying", what=f"{PARAMETER} {size}")
        try:
            sizes.add(_measured(function, job, params, size))
        except torch.OutOfMemoryError:
            sizes.out_of_memory(size, job.rank)
            if job.world_size == 1:
                break
            _tell(job, sizes.lines(), every_rank=True)
            if (attempt := _attempt(job)) is not None:
                write_durably(attempt.outcome, f"done finished {job.step}\n")
            raise TrainError(f"{PARAMETER} {size}: memory ran out on rank {job.rank}, which ends the search.") from None
        except ConfigError as error:
            if not sizes.rows:
                raise
            sizes.ended = f"{error}".partition(". ")[0] + "."
            break
        _tell(job, sizes.lines())
        size *= 2
    _tell(job, sizes.lines())


def _measured(function: Callable[..., Any], job: JobHandle, params: dict[str, Any], size: int) -> BatchSizeRow:
    cuda = job.device.type == "cuda"
    gc.collect()  # the model before
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(job.device)
    params = {**params, PARAMETER: size}
    seed_everything(job.seed, job.rank)
    try:
        function(job.for_measuring(params), **params)
    except Profiled as profiled:
        if profiled.report is None:
            raise ConfigError(f"profile.steps: {job.profile.steps} are too few to measure. Use 6 or more.") from None
        bytes_ = job.group.agree(torch.cuda.max_memory_allocated(job.device) if cuda else 0)[0]
        return BatchSizeRow(
            size, profiled.batch, profiled.full, _seconds(profiled.report), bytes_ / 1e9 if cuda else None
        )
    raise ConfigError("profile.find: the entry has no job.loop() and no Trainer. It takes one of them to count steps.")


def _first_size(function: Callable[..., Any], params: dict[str, Any]) -> int:
    parameters = inspect.signature(function).parameters
    known = params.get(PARAMETER, getattr(parameters.get(PARAMETER), "default", None))
    if not isinstance(known, int) or known < 1:
        raise ConfigError(
            f"profile.find: {getattr(function, '__qualname__', function)}() has no parameter {PARAMETER}, a number to "
            f"begin with. Give it one, of one rank's batch, and hand it to job.loader() or fit()."
        )
    return known


def _seconds(report: dict[str, Any], without: str = "") -> float:
    """Of a step of the slowest rank."""
    return float(max(sum(ms for name, ms in rank["ms"].items() if name != without) for rank in report["ranks"])) / 1000


def _mean_batch(feed: Batches[Any]) -> float:
    """The last batch of an epoch is shorter."""
    if feed.sampler is None or not feed.per_epoch:
        return float(feed.batch_size)
    return min(float(feed.batch_size), feed.sampler.size / feed.sampler.world_size / feed.per_epoch)


def _attempt(job: JobHandle) -> Attempt | None:
    return RunDir(job.run_dir).attempt(job.attempt) if job.run_dir is not None else None


def _tell(job: JobHandle, lines: list[str], *, every_rank: bool = False) -> None:
    """Into the run folder, where `clusterdp profile` looks. Each time the whole."""
    if job.rank != 0 and not every_rank:
        return
    if (attempt := _attempt(job)) is not None:
        write_durably(attempt.found, json.dumps(lines, indent=1) + "\n")
    else:
        say("\n".join(lines))
