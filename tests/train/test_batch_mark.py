"""A mark of a batch finds another batch out, whatever its form, and leaves alone what it cannot read."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from clusterdp.train.data.batch_mark import LastBatch, mark_of

PIXELS = torch.rand(8, 3, 16, 16)


@pytest.mark.parametrize(
    ("batch", "other"),
    [
        (PIXELS, PIXELS.flip(0)),
        (PIXELS.contiguous(memory_format=torch.channels_last), PIXELS.flip(0)),
        ([PIXELS, torch.arange(8)], [PIXELS, torch.arange(8).flip(0)]),
        ({"x": PIXELS, "y": ["a", "b"]}, {"x": PIXELS, "y": ["b", "a"]}),
        (list(range(40)), list(range(1, 41))),
        (numpy.arange(9.0), numpy.arange(1, 10.0)),
        ((torch.tensor(1.0), 2), (torch.tensor(1.0), 3)),
    ],
)
def test_batch_mark_is_stable_and_differs_between_different_batches(batch: Any, other: Any) -> None:
    assert mark_of(batch) == mark_of(batch) != mark_of(other)


@pytest.mark.parametrize(
    "batch",
    [
        None,
        [],
        {},
        torch.empty(0),
        torch.empty(2, device="meta"),
        numpy.array([object()]),
        object(),
        torch.eye(2).to_sparse(),
    ],
)
def test_unreadable_or_empty_batch_has_the_same_mark_as_a_plain_object(batch: Any) -> None:
    assert mark_of(batch) == mark_of(object())


@pytest.mark.parametrize("make", [lambda x: x, lambda x: (x, x + 1), lambda x: {"x": x}])
def test_last_batch_has_no_mark_after_an_in_place_change(make: Any) -> None:
    tensor = torch.arange(9.0)
    last = LastBatch(make(tensor))
    assert last.mark == mark_of(make(torch.arange(9.0)))
    tensor.add_(1)
    assert last.mark is None


@pytest.mark.parametrize("make", [lambda x: [x, "a"], lambda x: {"x": [x]}, lambda x: x.numpy()])
def test_last_batch_keeps_its_first_mark_if_in_place_changes_are_undetectable(make: Any) -> None:
    tensor = torch.arange(9.0)
    last = LastBatch(make(tensor))
    tensor.add_(1)
    assert last.mark == mark_of(make(torch.arange(9.0)))
