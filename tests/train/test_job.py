"""The handle: loaders of too little data say so, on all ranks alike, instead of training on nothing or waiting."""

from __future__ import annotations

from typing import Any

import pytest

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle


def on_rank(job: JobHandle, rank: int, size: int) -> JobHandle:
    job.rank, job.world_size = rank, size
    return job


@pytest.mark.parametrize("rank", range(4))
def test_a_data_set_smaller_than_the_ranks_is_padded_from_its_start(job: JobHandle, rank: int) -> None:
    loader = on_rank(job, rank, 4).loader([10, 11, 12], 2, shuffle=False)  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[[10], [11], [12], [10]][rank]]


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize(
    ("samples", "options", "said"),
    [
        (3, {"batch_size": 1, "drop_last": True}, "3 samples are no batch of 1 for each of 4 ranks, and drop_last"),
        (30, {"batch_size": 8, "drop_last": True}, "30 samples are no batch of 8 for each of 4 ranks"),
        (0, {"batch_size": 1}, "0 samples are no batch of 1 for each of 4 ranks. Use more data"),
    ],
)
def test_no_batch_at_all_is_an_error_on_every_rank(
    job: JobHandle, rank: int, samples: int, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"loader: {said}"):
        on_rank(job, rank, 4).loader(range(samples), **options)  # type: ignore[arg-type]


def test_the_samples_of_a_batch_are_known_to_whom_it_concerns(job: JobHandle) -> None:
    loop = job.loop(job.loader(range(10), 3, seed_samples=False), {}, epochs=2)  # type: ignore[arg-type]
    named = [(loop.samples() if loop.samples else None, batch.tolist()) for batch in loop]
    assert len(named) == 8
    assert all(samples == batch for samples, batch in named)
    assert job.loop([1, 2], {}).samples is None
