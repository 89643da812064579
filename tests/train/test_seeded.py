"""Augmentations: if they depended on which worker drew them, a resumed run would train on other pictures."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from clusterdp.train import SeededDataset
from clusterdp.train.data.seeded import mixed_seed
from tests.forked import quick_to_start


class Augmented(Dataset[Any]):
    """Draws from everything that there is to draw from."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [torch.rand(()).item(), random.random(), numpy.random.rand(), random.gauss(0, 1)]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Batched(Augmented):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def samples(data: Any, order: list[int], *, workers: int = 0, batch_size: int = 2, **options: Any) -> dict[int, Any]:
    loader = DataLoader(data, batch_size, sampler=order, num_workers=workers, generator=torch.Generator(), **options)
    return {int(row[0]): row.tolist() for batch in loader for row in batch}


@pytest.fixture(autouse=True)
def streams() -> None:
    """Put somewhere else before each test."""
    torch.manual_seed(77)
    random.seed(77)
    numpy.random.seed(77)


ALL = list(range(12))


def test_seeded_sample_draws_equal_random_numbers_in_any_worker_order_or_batch() -> None:
    data = SeededDataset(Augmented(), seed=3)
    alone = samples(data, ALL)
    assert samples(data, ALL[::-1], batch_size=3) == alone
    assert samples(data, ALL, workers=2) == alone
    assert samples(data, [7, 1], workers=1) == {7: alone[7], 1: alone[1]}
    assert data[5].tolist() == alone[5]
    assert len({value for row in alone.values() for value in row[1:]}) == 48


def test_seeded_sample_draws_other_random_numbers_in_each_epoch_and_seed() -> None:
    data, other = SeededDataset(Augmented(), seed=3), SeededDataset(Augmented(), seed=4)
    first = samples(data, ALL)
    data.set_epoch(1)
    second, third = samples(data, ALL), samples(other, ALL)
    assert all(first[i] != second[i] != third[i] != first[i] for i in ALL)
    data.set_epoch(0)
    assert samples(data, ALL) == first


def test_persistent_loader_workers_receive_the_new_epoch_of_a_seeded_dataset() -> None:
    data = SeededDataset(Augmented(), seed=3)
    loader = DataLoader(data, 2, num_workers=1, persistent_workers=True)
    epochs = []
    for epoch in (0, 1):
        data.set_epoch(epoch)
        epochs.append([batch.tolist() for batch in loader])
    data.set_epoch(1)
    alone = [batch.tolist() for batch in DataLoader(data, 2)]
    del loader
    assert epochs[1] == alone != epochs[0]


@pytest.mark.parametrize("dataset", [Augmented(), Batched()])
def test_seeded_dataset_leaves_the_global_random_streams_unchanged(dataset: Any) -> None:
    data = SeededDataset(dataset)
    random.gauss(0, 1)  # leaves a second one behind, which is state too
    numpy.random.randn()

    def drawn() -> list[Any]:
        return [
            torch.rand(2).tolist(),
            torch.randn(1).item(),
            random.gauss(0, 1),
            random.random(),
            numpy.random.randn(),
        ]

    before = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
    expected = drawn()
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    numpy.random.set_state(before[2])
    samples(data, ALL, collate_fn=data.collation(mixes))
    assert drawn() == expected


def mixes(rows: list[torch.Tensor]) -> torch.Tensor:
    """Draws, too."""
    return torch.stack([torch.cat([row, torch.rand(1, dtype=torch.float64)]) for row in rows])


def test_random_numbers_of_a_seeded_collate_fn_depend_only_on_its_batch() -> None:
    data = SeededDataset(Augmented(), seed=3)
    options = {"collate_fn": data.collation(mixes)}
    alone = samples(data, ALL, **options)
    assert samples(data, ALL, workers=2, **options) == alone
    assert samples(data, ALL[6:], **options) == {i: alone[i] for i in ALL[6:]}
    assert len({row[-1] for row in alone.values()}) == 12


def test_seeded_samples_are_equal_in_forkserver_workers() -> None:
    data = SeededDataset(Augmented(), seed=3)
    options = {"collate_fn": data.collation(mixes)}
    unpickled = samples(data, ALL[:2], workers=1, multiprocessing_context=quick_to_start, **options)
    assert unpickled == samples(data, ALL[:2], **options)


def test_random_numbers_of_a_seeded_getitems_batch_depend_only_on_its_indices() -> None:
    data = SeededDataset(Batched(), seed=3)
    alone = samples(data, ALL)
    assert samples(data, ALL, workers=2) == alone
    assert samples(data, ALL[6:]) == {i: alone[i] for i in ALL[6:]}
    assert alone[0][1:] != alone[1][1:]


def test_seeded_subset_draws_by_sample_or_by_batch_like_its_data_set() -> None:
    data = SeededDataset(Subset(Augmented(), ALL), seed=3)
    assert samples(data, ALL[1:]) == {i: row for i, row in samples(data, ALL).items() if i > 0}
    at_once = SeededDataset(Subset(Batched(), ALL), seed=3)
    assert samples(at_once, ALL, workers=2) == samples(at_once, ALL)


def test_sample_repeated_in_an_epoch_draws_other_random_numbers_at_each_place() -> None:
    data = SeededDataset(Augmented(), seed=3)
    first, again, elsewhere = data[(0, 5)], data[(0, 5)], data[(1, 5)]
    assert first.tolist() == again.tolist()
    assert first[0] == elsewhere[0] == 5
    assert first.tolist() != elsewhere.tolist()


def test_seeded_dataset_forwards_attributes_of_its_data_set() -> None:
    data: Any = SeededDataset(Augmented())
    assert (len(data), data.classes) == (12, ("cat", "dog"))
    with pytest.raises(AttributeError, match="colour"):
        _ = data.colour


def test_mixed_seeds_of_neighbouring_samples_differ() -> None:
    seeds = {mixed_seed(seed, epoch, index) for seed in range(3) for epoch in range(10) for index in range(1000)}
    assert len(seeds) == 30_000
    assert len({seed & 0xFFFFFFFF for seed in seeds}) > 29_990
    assert mixed_seed(0, 1) != mixed_seed(1, 0)
