"""GraphWatch: notices `losses.append(loss)` and `total += loss`, which keep every step's activations in memory.

loop.log() and meters detach their values. But the user's own code may keep the tensor as well. Then the used memory
grows with each step until all memory is full, hours later. Therefore GraphWatch attaches an object to the graph for a
few steps, and checks some steps later whether those objects still exist."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from clusterdp.train.output.metric_log import check_number
from clusterdp.train.output.say import say

ROUND = 8  # number of consecutive steps that GraphWatch marks
ALIVE = 6  # if this many of the ROUND marks still exist, graphs are kept by mistake
PAUSE = 1000  # steps between two rounds
CUDA_GRAPHS = "torch._inductor.cudagraph_trees"  # torch loads this module with the first compiled model


class _Mark:
    """An object that lives as long as the graph to which it is attached."""


def detached(name: str, value: Any) -> Any:
    """Returns a logged value without its graph; a copy, if the next step of a CUDA graph may overwrite the value.
    Raises ConfigError for several numbers."""
    check_number(name, value)
    if not isinstance(value, torch.Tensor):
        return value
    if value.requires_grad:
        value = value.detach()
    return value.clone() if value.is_cuda and CUDA_GRAPHS in sys.modules else value


class GraphWatch:
    """`kept`: the name of the first value whose graphs are kept. GraphWatch reports it once, on stderr."""

    def __init__(self) -> None:
        self.kept: str | None = None
        self._marks: list[weakref.ref[_Mark]] = []
        self._name: str | None = None  # the name of the first value with a graph; the others are not watched
        self._wait = 0

    def look(self, name: str, value: Any) -> None:
        """Checks a value that a step measures. Between two rounds, the check costs nothing."""
        if self._name is not None and name != self._name:
            return
        if self._wait:
            self._wait -= 1
            return
        if not isinstance(value, torch.Tensor) or value.grad_fn is None:
            return
        self._name = name
        mark = _Mark()
        # The graph's node keeps the mark for as long as a backward pass can still go through the node.
        value.grad_fn.metadata["clusterdp"] = mark  # type: ignore[index]  # torch's stub declares a method
        self._marks.append(weakref.ref(mark))
        if len(self._marks) >= ROUND:
            self._check(name)

    def _check(self, name: str) -> None:
        alive = sum(mark() is not None for mark in self._marks)
        self._marks.clear()
        self._wait = PAUSE
        if alive >= ALIVE and self.kept is None:
            self.kept = name
            say(
                f"clusterdp: {name}: the graphs of {alive} of the last {ROUND} steps are still in memory, and it fills "
                f"up. Keep {name}.detach() (or let loop.log() and Meters keep it), not {name} itself.",
                error=True,
            )
