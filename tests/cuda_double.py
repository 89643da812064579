"""A double of CUDA's streams for tests without a GPU: queues whose work runs as late, or as early, as CUDA allows.

It proves an order, and nothing about a GPU: the checks of the GPU day do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class Event:
    """A place in a stream's queue. An event that was never recorded has happened."""

    def __init__(self, blocking: bool = False, enable_timing: bool = False):
        self.stream: Stream | None = None
        self.at = 0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or torch.cuda.current_stream()  # type: ignore[assignment]
        assert self.stream is not None
        self.at = len(self.stream.queue)

    def query(self) -> bool:
        return self.stream is None or self.stream.done >= self.at

    def elapsed_time(self, later: Event) -> float:
        return 0.0

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run(self.at)


class Stream:
    """Work runs in order, and only when something waits for it or run() is called."""

    def __init__(self, device: Any = None):
        self.device = device
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def add(self, work: Callable[[], None]) -> None:
        self.queue.append(work)

    def record_event(self) -> Event:
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        self.add(event.synchronize)

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def run(self, until: int | None = None) -> None:
        while self.done < (len(self.queue) if until is None else until):
            self.done += 1
            self.queue[self.done - 1]()


class OnGpu(torch.Tensor):
    """A tensor in main memory that claims to be on a GPU. used_on: streams that record_stream() named."""

    card = torch.device("cuda:0")  # of a view, too
    used_on: list[Any]

    @classmethod
    def of(cls, tensor: torch.Tensor, card: str = "cuda:0") -> OnGpu:
        made = tensor.as_subclass(cls)
        made.card, made.used_on = torch.device(card), []
        return made

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.card

    def record_stream(self, stream: Any) -> None:
        self.used_on.append(stream)


class Cuda:
    """streams: the current one of each device."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.streams: dict[torch.device, Stream] = {}
        self._here = torch.device("cuda:0")
        for name in ("current_stream", "stream", "device"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "Event", Event)

    def current_stream(self, device: torch.device | None = None) -> Stream:
        found = torch.device("cuda", device.index or 0) if device is not None else self._here
        return self.streams.setdefault(found, Stream(found))

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.streams[self._here] = self.current_stream(), stream
        yield
        self.streams[self._here] = before

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._here = self._here, device
        yield
        self._here = before
