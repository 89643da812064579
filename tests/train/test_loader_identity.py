"""What is known of a loader, and what follows when it is another one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from clusterdp.train.data.loader_identity import changes, facts, same_place, why_not_exact

DATA = TensorDataset(torch.arange(12.0))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Odd:
    """A loader of somebody's own, with other things under the names that torch has."""

    batch_size = numpy.int64(4)
    drop_last = numpy.bool_(True)
    num_workers = "auto"
    dataset = Stream()

    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    "loader", [DataLoader(DATA, 2), DataLoader(Stream(), 2), Odd(), [1, 2], range(3), (i for i in range(3)), iter([])]
)
def test_facts_of_any_loader_are_unchanged_by_a_json_round_trip(loader: Any) -> None:
    assert json.loads(json.dumps(facts(loader))) == facts(loader)
    assert changes(facts(loader), facts(loader)) == []


def test_loader_facts_missing_in_an_older_checkpoint_count_as_unchanged() -> None:
    assert changes({}, facts(DataLoader(DATA, 2))) == []


@pytest.mark.parametrize(
    ("size", "batches", "new", "place"),
    [(2, 3, 6, 1), (2, 3, 3, 2), (2, 3, 4, None), (4, 1, 1, 4), (5, 3, 4, 3), (2, 0, 4, 0)],
)
def test_same_place_converts_the_position_to_another_batch_size(
    size: int, batches: int, new: int, place: int | None
) -> None:
    was, loader = facts(DataLoader(DATA, size)), DataLoader(DATA, new)
    assert same_place(was, facts(loader), loader, batches) == place


def test_same_place_returns_none_for_a_custom_batch_sampler() -> None:
    class Own(BatchSampler): ...

    was = facts(DataLoader(DATA, batch_sampler=Own(SequentialSampler(DATA), 2, False)))
    loader = DataLoader(DATA, batch_sampler=Own(SequentialSampler(DATA), 4, False))
    assert changes(was, facts(loader)) == ["batch size 2 -> 4"]
    assert same_place(was, facts(loader), loader, 2) is None


def test_same_place_returns_none_for_a_stream_with_a_length() -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return 12

    was = facts(DataLoader(Sized(), 2, num_workers=2))
    loader = DataLoader(Sized(), 4, num_workers=2)
    assert same_place(was, facts(loader), loader, 2) is None


def test_custom_worker_collate_fn_is_inexact_only_in_mid_epoch_without_replay() -> None:
    plain = DataLoader(DATA, 2, num_workers=1, persistent_workers=True)
    assert why_not_exact(plain, begun=True, epoch=3, replayed=False) is None
    mixing = DataLoader(DATA, 2, num_workers=1, collate_fn=list)
    assert why_not_exact(mixing, begun=True, epoch=0, replayed=False) is not None
    assert why_not_exact(mixing, begun=True, epoch=0, replayed=True) is None
    assert why_not_exact(mixing, begun=False, epoch=3, replayed=False) is None
