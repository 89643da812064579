"""Strides of tensors that are not row-major in memory (channels_last, transposed). Torch-free.

In files, tensors are always row-major. With a different memory format, kernels add up in a different order. Therefore a
checkpoint records the strides (in elements) of tensors that are not row-major, and a restore sets these strides again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

Shape = tuple[int, ...]


@lru_cache(maxsize=4096)
def rows(shape: Shape) -> Shape:
    """Returns the strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=4096)  # cached because every save has the same strides
def dense(shape: Shape, strides: Shape) -> Shape:
    """Returns strides with the same order of dimensions, without gaps. A stride of 0, which repeats one element,
    stays."""
    made, step = [*strides], 1
    for dim in sorted((d for d, size in enumerate(shape) if size > 1 and strides[d]), key=lambda d: strides[d]):
        made[dim] = step
        step *= shape[dim]
    return tuple(made)


def noted(shape: Shape, strides: Shape) -> Shape | None:
    """Returns the strides to record for a tensor; None if the tensor is row-major."""
    if strides == rows(shape) or 0 in shape:
        return None
    made = dense(shape, strides)
    return None if made == rows(shape) else made


def from_json(data: Any, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the checked strides. Raises ValueError if strides do not fit the shapes, or if they have gaps or
    overlap."""
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
