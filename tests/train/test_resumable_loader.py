"""The length of a loader: that of the whole epoch, before, in and after it, and however many ranks share it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle, ResumableSampler, windows
from clusterdp.train.data.resumable_loader import ResumableLoader, batches_left

DATA = TensorDataset(torch.arange(22.0))


def dealt(ranks: int, rank: int = 0, batch_size: int = 2, **options: Any) -> Any:
    sampler = ResumableSampler(DATA, rank=rank, world_size=ranks, **options)
    return ResumableLoader(DATA, batch_size=batch_size, sampler=sampler, drop_last=options.get("drop_last", False))


def place(loader: Any) -> tuple[int, int, int]:
    return len(loader), loader.done, loader.left


@pytest.mark.parametrize("options", [{}, {"timeout": 0}])
def test_loader_length_stays_constant_while_an_epoch_is_consumed(job: JobHandle, options: dict[str, int]) -> None:
    """Of one that slices tensors, and of one that reads samples."""
    loader: Any = job.loader(DATA, 4, **options)
    places = [place(loader)]
    loop = job.loop(loader, {}, epochs=2)
    for epoch in loop.epochs():
        places.append(place(loader))
        places += [place(loader) for _ in epoch]
        places.append(place(loader))
    epochs = [(6, 0, 6), *((6, done, 6 - done) for done in range(6)), (6, 6, 0)]
    assert places == [(6, 0, 6), *epochs, *epochs]


@pytest.mark.parametrize("drop_last", [False, True])
def test_loader_resumed_on_three_instead_of_two_ranks_counts_the_whole_epoch(drop_last: bool) -> None:
    two = dealt(2, drop_last=drop_last)
    two.sampler.advance(6)
    assert place(two) == ((5, 3, 2) if drop_last else (6, 3, 3))
    for rank in range(3):
        three = dealt(3, rank, drop_last=drop_last)
        three.sampler.load_state_dict(two.sampler.state_dict())  # 12 of 22 samples are done
        assert place(three) == ((3, 2, 1) if drop_last else (4, 2, 2))
        numbers = [number for number, _ in enumerate(three, three.done)]
        assert numbers == ([2] if drop_last else [2, 3])


def test_accumulation_windows_of_a_resumed_epoch_end_with_its_last_batch() -> None:
    loader = dealt(1)
    loader.sampler.advance(8)  # one window of four batches
    assert [(*window,) for _, window in windows(loader, 4)] == [(4, False)] * 3 + [(4, True)] + [(3, False)] * 2 + [
        (3, True)
    ]


def test_batches_left_returns_none_for_foreign_loaders() -> None:
    assert batches_left(range(3)) is None
    assert batches_left(DataLoader(DATA, 2)) is None


def test_job_loader_refuses_a_batch_sampler_with_a_remedy(job: JobHandle) -> None:
    batches = torch.utils.data.BatchSampler(range(22), 2, False)
    with pytest.raises(ConfigError, match=r"batch_sampler: .* makes the batches itself\. Pass sampler="):
        job.loader(DATA, None, batch_sampler=batches)
