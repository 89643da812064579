"""How the elements of a tensor lie in memory, where that is not row by row (channels_last, transposed). Torch-free.

Files have them row by row, whatever they were in memory. Kernels add in another order for another memory format, so a
checkpoint notes the strides (in elements) of such tensors, and a restore makes them so again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Shape = tuple[int, ...]


@lru_cache(maxsize=4096)
def rows(shape: Shape) -> Shape:
    """The strides of a tensor that lies row by row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)  # save after save they are the same
def dense(shape: Shape, strides: Shape) -> Shape:
    """Strides of the same order of dimensions without gaps. 0 stays: all along that dimension is one element."""
    made, step = [*strides], 1
    for dim in sorted((d for d, size in enumerate(shape) if size > 1 and strides[d]), key=lambda d: strides[d]):
        made[dim] = step
        step *= shape[dim]
    return tuple(made)


def noted(shape: Shape, strides: Shape) -> Shape | None:
    """The strides to note for a tensor; None if it lies row by row."""
    if strides == rows(shape) or 0 in shape:
        return None
    made = dense(shape, strides)
    return None if made == rows(shape) else made


def from_json(data: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Raises ValueError if these are not strides of those tensors, without gaps and without overlap."""
    found = {}
    for name, strides in data.items():
        shape = shapes.get(name)
        if shape is None or len(strides) != len(shape):
            raise ValueError(f"the strides of {name!r:.80} are of no tensor: {strides!r:.200}")
        if not all(type(n) is int and 0 <= n < 1 << 63 for n in strides) or dense(shape, tuple(strides)) != tuple(
            strides
        ):
            raise ValueError(f"the strides of {name!r:.80} do not fit its shape {list(shape)}: {strides!r:.200}")
        found[name] = tuple(strides)
    return found
