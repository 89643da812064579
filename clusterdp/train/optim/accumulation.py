"""Gradient accumulation: one all-reduce and one step of the optimizer for several batches.

    for batch, window in windows(loader, 4):
        with gradient_sync(model, window.ends):
            (loss(model, batch) / window.size).backward()
        if window.ends:
            optimizer.step()
            optimizer.zero_grad()

All batches of a window have the same weight. With job.loop(accumulate=4), use loop.window and loop.window_ends instead
of windows().
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import checked
from clusterdp.train.data.resumable_loader import batches_left
from clusterdp.train.parallel.gradient_mean import mean_of

Batch = TypeVar("Batch")
AS_IT_IS = nullcontext()


class Window(NamedTuple):
    """size: number of batches in the window. ends: whether the present batch is the last one of the window."""

    size: int
    ends: bool


@checked
def windows(loader: Collection[Batch], size: int) -> Iterator[tuple[Batch, Window]]:
    """Yields each batch, and the Window to which the batch belongs. The last window of the loader may be shorter.

    In an epoch that a ResumableSampler resumes, the windows divide the rest of the epoch.
    """
    if size < 1:
        raise ConfigError(f"accumulate: {size} is less than 1. Use 1 or more.")
    left = batches_left(loader)
    total = len(loader) if left is None else left
    for i, batch in enumerate(loader):
        begin = i - i % size
        yield batch, Window(min(size, total - begin), i + 1 == min(begin + size, total))


@checked
def gradient_sync(model: nn.Module, on: bool) -> AbstractContextManager[Any]:
    """Decides whether backward passes in the with block average gradients over the ranks. Run the forward pass in the
    block, too.

    Uses DDP's no_sync(), FSDP2's set_requires_gradient_sync() or the model's GradientMean, and does nothing for other
    models.
    """
    return AS_IT_IS if on else _no_sync(model)


@contextmanager
def _no_sync(model: nn.Module) -> Iterator[None]:
    if (shards := getattr(model, "set_requires_gradient_sync", None)) is not None:  # importing FSDP2 takes a second
        shards(False)
        try:
            yield
        finally:
            shards(True)
    else:
        with ExitStack() as stack:
            # Each part of a model that is split over devices may be in a DDP of its own.
            if (mean := mean_of(model)) is not None:
                stack.enter_context(mean.off())
            for part in (model,) if isinstance(model, DistributedDataParallel) else model.modules():
                if isinstance(part, DistributedDataParallel):
                    stack.enter_context(part.no_sync())
            yield
