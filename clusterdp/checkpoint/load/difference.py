"""measure(): the size of the difference between the values of two tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from clusterdp.checkpoint.state.tree import DTYPES

_ELEMENTS = 1 << 20  # number of elements compared at a time, whose float64 copies need memory beyond the tensors


@dataclass(frozen=True)
class TensorDifference:
    """`count`: number of elements whose bits differ. `mean`: the mean difference of all elements. If only one of two
    elements is NaN, `max` and `mean` are NaN."""

    count: int
    max: float
    mean: float


def measure(a: bytearray, b: bytearray, dtype: str) -> TensorDifference:
    """Returns the difference of two tensors of equal dtype and number of elements, given as their bytes."""
    kind = DTYPES[dtype]
    left, right = torch.frombuffer(a, dtype=kind), torch.frombuffer(b, dtype=kind)
    count, most, total = 0, 0.0, 0.0
    for start in range(0, left.numel(), _ELEMENTS):
        x, y = left[start : start + _ELEMENTS], right[start : start + _ELEMENTS]
        differs = (x.view(torch.uint8) != y.view(torch.uint8)).view(-1, x.element_size()).any(dim=1)
        if not differs.any():
            continue
        # Only elements that differ are subtracted, because infinity minus infinity is NaN.
        distance = (_wide(x)[differs] - _wide(y)[differs]).abs()  # in old torch, some types have no index
        count += distance.numel()
        found = distance.max().item()  # torch's max() of a NaN is NaN
        most = found if math.isnan(found) or found > most else most
        total += distance.sum().item()
    return TensorDifference(count, most, total / max(1, left.numel()))


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)
