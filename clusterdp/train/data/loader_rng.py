"""OwnStreams: separate random streams for what a loader draws in the training process.

    streams.begin()                 # once the iterator exists
    with streams:
        batch = next(iterator)      # a shuffle buffer, a sampler that draws as it goes

A loader that does not keep its position is read again on resume. If it shared a stream with dropout, its numbers would
differ then: of 80 samples, 6 came twice and 6 not at all. It costs 0.25 ms a batch.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from clusterdp.train.data.seeded import mixed_seed, seed_streams, set_streams, streams, streams_restored

APART = 1  # the loader's first number is not the training's


class OwnStreams:
    """Separate copies of the CPU's global streams (Python's, numpy's, torch's). Until begin(), `with` does nothing."""

    def __init__(self) -> None:
        self._own: Any = None
        self._outer: Any = None

    def begin(self) -> None:
        """Seeds them from the global streams, which do not change."""
        with streams_restored():
            seed_streams(mixed_seed(int(torch.empty((), dtype=torch.int64).random_()), APART))
            self._own = streams()

    def end(self) -> None:
        self._own = None

    def __enter__(self) -> None:
        if self._own is not None:
            self._outer = streams()
            set_streams(self._own)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._own is not None:
            self._own = streams()
            set_streams(self._outer)
