"""measure(): in how many elements two tensors of one dtype and shape differ, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.checkpoint.format.layout import ITEM_SIZES
from clusterdp.rehearse.state.end_state import Leaf
from clusterdp.rehearse.state.stored import Bytes

Values = NDArray[Any]  # doubles, or complex ones
_BYTES = 1 << 18  # at a time: their doubles stay in the processor's cache
_LARGE = 1e140  # what is larger, infinite or NaN has no distance: the squares of a chunk of others have a sum


@dataclass(frozen=True)
class Measured:
    """`count`: elements with other bits; two NaNs are equal. `most`: the largest distance, None where the dtype is none
    that numpy computes with. `relative`: the L2 norm of the distances in that of the larger tensor, or the share of the
    elements that differ."""

    count: int
    total: int
    most: float | None
    relative: float


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def measure(a: Bytes, b: Bytes, dtype: str) -> Measured:
    """Of their bytes."""
    item = ITEM_SIZES.get(dtype, 1)
    total = len(a) // item
    count, most, squares, left, right = 0, 0.0, 0.0, 0.0, 0.0
    known = values(a[:0], dtype) is not None
    for start in range(0, len(a), _BYTES):
        x, y = a[start : start + _BYTES], b[start : start + _BYTES]
        other = _differing(x, y, item)
        u, v = values(x, dtype), values(y, dtype)
        if u is None or v is None:
            count += int(np.count_nonzero(other))
            continue
        if not math.isfinite(_square(u) + _square(v)):
            other &= ~(np.isnan(u) & np.isnan(v))
            large = ~((np.abs(u) < _LARGE) & (np.abs(v) < _LARGE))
            if (other & large).any():
                most, squares = math.inf, math.inf
            u, v = np.where(large, 0, u), np.where(large, 0, v)
        count += int(np.count_nonzero(other))
        distance = u - v
        most = max(most, float(np.abs(distance).max()))
        squares, left, right = squares + _square(distance), left + _square(u), right + _square(v)
    if not known:
        return Measured(count, total, None, count / max(1, total))
    norm = max(left, right)
    return Measured(count, total, most, math.sqrt(squares / norm) if norm else math.inf if squares else 0.0)


def number_of(leaf: Leaf) -> float | None:
    """A single number, be it a plain one or a tensor of one element; None of anything else."""
    if leaf.stored is None:
        return float(leaf.value) if isinstance(leaf.value, (int, float)) else None
    found = values(leaf.stored.read(), leaf.dtype) if math.prod(leaf.shape) == 1 else None
    return None if found is None else float(found[0].real)


def values(data: Bytes, dtype: str) -> Values | None:
    """As doubles; None where numpy has no such dtype (float8)."""
    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "complex32" or dtype not in ITEM_SIZES or dtype.startswith("float8"):
        return None
    return data.view(np.dtype(dtype)).astype(np.complex128 if dtype.startswith("complex") else np.float64)


def _differing(x: Bytes, y: Bytes, item: int) -> NDArray[np.bool_]:
    kind = np.dtype(f"u{min(item, 8)}")
    found: NDArray[np.bool_] = x.view(kind) != y.view(kind)
    return np.logical_or(found[::2], found[1::2]) if item == 16 else found


def _square(values: Values) -> float:
    flat = values.view(np.float64)
    return float(np.einsum("i,i->", flat, flat))  # not dot(): its threads would take the cores from the job
