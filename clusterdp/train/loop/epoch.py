"""Epoch: one pass over the data of a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from clusterdp.train.loop.loop import Loop

Batch = TypeVar("Batch")


class Epoch(Generic[Batch]):
    """One pass over the data, or what is left of it. Iterate it once."""

    def __init__(self, loop: Loop[Batch], index: int):
        self.loop = loop
        self.index = index

    def __repr__(self) -> str:
        """The number, for it is printed by whoever takes it for one."""
        return str(self.index)

    def __format__(self, spec: str) -> str:
        return format(self.index, spec)

    def __iter__(self) -> Iterator[Batch]:
        return self.loop._batches()
