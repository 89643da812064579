"""find_batch_size: runs the entry repeatedly, with twice the batch size each time, and reports the best size."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

from clusterdp.batch.evidence import OUT_OF_MEMORY
from clusterdp.errors import ConfigError, TrainError
from clusterdp.rundir import write_durably
from clusterdp.train.job import JobHandle, call
from clusterdp.train.profile.batch_size_finder import BatchSizeRow, BatchSizeTable
from clusterdp.train.profile.profiling import Profiled, step_seconds, tell
from clusterdp.train.ranks.group import seed_everything

PARAMETER = "batch_size"


def find_batch_size(function: Callable[..., Any], job: JobHandle, **params: Any) -> None:
    """Trains from the beginning with each size, until a larger size brings no gain. Collective.

    A rank that runs out of memory ends the search by ending the attempt, because the others may be waiting for it in
    the middle of a step. The rank that runs out of memory writes the table and the outcome, and the others end as after
    any failure of a rank.
    """
    size = _first_size(function, params)
    table = BatchSizeTable(job.world_size, on_gpu=job.device.type == "cuda")
    while table.go_on(size):
        job.event("trying", what=f"{PARAMETER} {size}")
        try:
            table.add(_measured(function, job, params, size))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            table.out_of_memory(size, job.rank)
            if job.world_size == 1:
                break
            tell(job.record, table.lines())
            if job.record.folder is not None:
                write_durably(job.record.folder.outcome, f"done profile {job.step}\n")
            raise TrainError(f"{PARAMETER} {size}: memory ran out on rank {job.rank}, which ends the search.") from None
        except ConfigError as error:
            if not table.rows:
                raise
            table.ended = f"{error}".partition(". ")[0] + "."
            break
        if job.rank == 0:
            tell(job.record, table.lines())
        size *= 2
    if job.rank == 0:
        tell(job.record, table.lines())


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether the error means that memory is full. Libraries with their own allocator raise other errors than
    torch."""
    return OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}") is not None


def _measured(function: Callable[..., Any], job: JobHandle, params: dict[str, Any], size: int) -> BatchSizeRow:
    cuda = job.device.type == "cuda"
    gc.collect()  # frees the previous model
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(job.device)
    params = {**params, PARAMETER: size}
    seed_everything(job.seed, job.rank)
    try:
        call(function, job.for_measuring(params), params)
    except Profiled as profiled:
        if profiled.report is None:
            raise ConfigError(f"profile.steps: {job.profile.steps} are too few to measure. Use 6 or more.") from None
        bytes_ = job.group.agree(torch.cuda.max_memory_allocated(job.device) if cuda else 0)[0]
        return BatchSizeRow(
            size, profiled.batch, profiled.full, step_seconds(profiled.report), bytes_ / 1e9 if cuda else None
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
