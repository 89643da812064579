"""Prefetcher: moves batches to the device. The next batch is copied (and normalised) on its own stream during the step.

    for images, labels in Prefetcher(batches, device, transform=normalise):     # around any iterator of batches

A Loop uses it with `job.loop(..., move=True)` or `move=normalise`. The Loop also decides whether a batch may be fetched
ahead without a change of the position that a checkpoint saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import torch

from clusterdp.train.argument_names import checked

END: Any = object()
Transform = Callable[[Any], Any]


class Prefetcher:
    """Batches are tensors, or tuples, lists and mappings of them. Other values in a batch are left unchanged.

    transform: a function of the batch on the device, such as bytes to floats. A transform must not draw random numbers.
    ahead: whether the next batch is fetched before the current batch is yielded; then the copy costs the step nothing,
    even if the step waits for the GPU. Copies are asynchronous from pinned memory only (DataLoader(pin_memory=True)).
    lap: Stopwatch.lap, to separate the wait for a batch ("data") from its copy and transform ("copy").
    """

    @checked
    def __init__(
        self,
        batches: Iterable[Any],
        device: torch.device | str,
        *,
        transform: Transform | None = None,
        ahead: bool = True,
        lap: Callable[[str], Any] = lambda name: None,
    ):
        self.batches = batches
        self.device = torch.device(device)
        self.transform, self.ahead, self.lap = transform, ahead, lap
        self._stream = _side_stream(self.device) if self.device.type == "cuda" else None

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.batches)
        coming = self._fetch(batches) if self.ahead else None
        while True:
            moved, arrived, _ = self._fetch(batches) if coming is None else coming
            if moved is END:
                return
            if arrived is not None:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(arrived)
                _used_on(here, moved)
            if self.ahead:
                coming = self._fetch(batches)
            yield moved

    def _fetch(self, batches: Iterator[Any]) -> tuple[Any, Any, Any]:
        """Returns a batch, the event of its arrival, and its source: pinned memory that must live until then."""
        batch = next(batches, END)
        if batch is END:
            return END, None, None
        self.lap("data")
        if self._stream is None:
            return self._move(batch), None, None
        made_on = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            moved = self._move(batch, made_on)
            return moved, self._stream.record_event(), batch

    def _move(self, batch: Any, made_on: Any = None) -> Any:
        moved = to_device(batch, self.device)
        if self.transform is not None:
            if self._stream is not None:
                # Kernels that write a batch which is on the GPU already, or a tensor that the function reads, may still
                # be queued on the step's stream. A copy from the host does not wait for these kernels, and begins
                # before they end.
                self._stream.wait_stream(made_on)
                _used_on(self._stream, batch)
            moved = self.transform(moved)
        self.lap("copy")
        return moved


def to_device(batch: Any, device: torch.device) -> Any:
    """Copies all tensors in the batch to the device, without waiting for the copies."""
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the batch with `change` applied to each tensor. Tuples, lists and mappings are new objects."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(part, change) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [map_tensors(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


@cache
def _side_stream(device: torch.device) -> Any:
    """Returns the process's one stream for copies to a device. The caching allocator keeps free blocks by stream: a new
    stream for each epoch would reserve the memory of some more batches each time."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _used_on(stream: Any, batch: Any) -> None:
    """Keeps the memory of a batch's GPU tensors from being reused while the stream still reads it."""
    map_tensors(batch, lambda tensor: tensor.record_stream(stream) if tensor.is_cuda else None)
