"""By how much two tensors differ: to the last bit, for every dtype."""

from __future__ import annotations

import math

import pytest
import torch

from clusterdp.checkpoint.load import difference
from clusterdp.checkpoint.load.difference import TensorDifference, measure
from clusterdp.checkpoint.state.tree import DTYPES, as_bytes, dtype_name, memory_of


def between(a: torch.Tensor, b: torch.Tensor) -> TensorDifference:
    return measure(bytearray(memory_of(as_bytes(a))), bytearray(memory_of(as_bytes(b))), dtype_name(a))


def test_measure_returns_count_maximum_and_mean_of_the_differences() -> None:
    a, b = torch.zeros(4, 5), torch.zeros(4, 5)
    b[1, 1], b[2, 2] = 3.0, -1.0
    assert between(a, b) == TensorDifference(2, 3.0, 0.2)


def test_measure_counts_equal_values_with_different_bits() -> None:
    assert between(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])) == TensorDifference(1, 0.0, 0.0)


def test_measure_ignores_equal_infinities_and_reports_nan_on_one_side() -> None:
    inf, nan = math.inf, math.nan
    assert between(torch.tensor([inf, nan, 1.0]), torch.tensor([inf, nan, 3.0])) == TensorDifference(1, 2.0, 2 / 3)
    assert math.isnan(between(torch.tensor([1.0, 1.0]), torch.tensor([nan, 5.0])).max)
    assert between(torch.tensor([1.0]), torch.tensor([inf])).max == inf


def test_difference_measured_in_pieces_equals_difference_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(1000), torch.rand(1000)
    b[100:300] = a[100:300]
    at_once = between(a, b)
    monkeypatch.setattr(difference, "_ELEMENTS", 64)
    in_pieces = between(a, b)
    assert (in_pieces.count, in_pieces.max) == (at_once.count, at_once.max) == (800, (a - b).abs().max())  # type: ignore[comparison-overlap]
    assert in_pieces.mean == pytest.approx(at_once.mean)
    b[500] = math.nan
    assert math.isnan(between(a, b).max)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_measure_supports_every_dtype_of_checkpoints(name: str) -> None:
    a = torch.tensor([1, 1, 1]).to(DTYPES[name])
    b = torch.tensor([1, 0 if name != "float8_e8m0fnu" else 2, 1]).to(DTYPES[name])
    assert between(a, b) == TensorDifference(1, 1.0, pytest.approx(1 / 3))
