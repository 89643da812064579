from __future__ import annotations

import pytest

from clusterdp.errors import ConfigError
from clusterdp.train import JobHandle
from clusterdp.train.optim.batch_size import BatchSize


def test_str_of_batch_size_shows_the_global_batch_and_its_factors() -> None:
    batch = BatchSize(32, world_size=8, accumulate=2)
    assert batch.total == 512
    assert str(batch) == "batch: 32 a rank x 8 ranks x 2 accumulated = 512"
    assert str(BatchSize(4)) == "batch: 4 a rank x 1 rank = 4"


def test_scaled_lr_follows_the_global_batch_by_the_given_rule() -> None:
    batch = BatchSize(64, world_size=16)
    assert batch.scaled_lr(0.1, reference=256) == pytest.approx(0.4)
    assert batch.scaled_lr(0.1, reference=256, rule="sqrt") == pytest.approx(0.2)
    assert batch.scaled_lr(0.1, rule="none") == 0.1
    with pytest.raises(ConfigError, match="'cubic' is none of linear, sqrt, none"):
        batch.scaled_lr(0.1, rule="cubic")


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_batch_size_of_total_divides_the_global_batch_among_ranks(world_size: int) -> None:
    batch = BatchSize.of_total(64, world_size, 2)
    assert batch.per_rank * world_size == 32
    assert batch.total == 64


@pytest.mark.parametrize(("total", "remedy"), [(3, "Use 8."), (20, "Use 16 or 24.")])
def test_indivisible_global_batch_is_an_error_with_the_nearest_divisible_sizes(total: int, remedy: str) -> None:
    with pytest.raises(ConfigError, match=f"batch size: {total} samples cannot be divided among 4 ranks x 2.*{remedy}"):
        BatchSize.of_total(total, 4, 2)


def test_batch_size_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="per_rank is 0"):
        BatchSize(0)


def test_job_batch_size_prints_the_global_batch(job: JobHandle, capsys: pytest.CaptureFixture[str]) -> None:
    job.batch_size(8)
    assert capsys.readouterr().out == "clusterdp: batch: 8 a rank x 1 rank = 8\n"
    job.train.global_batch_size = 32
    assert job.batch_size(8).total == 32


def test_job_steps_counts_steps_of_the_optimizer(job: JobHandle) -> None:
    loader = job.loader(range(99), 8)  # type: ignore[arg-type]  # 13 batches
    assert job.steps(loader, 2) == 26
    job.train.accumulate = 4
    assert job.steps(loader, 2) == 8
    job.train.accumulate, job.train.global_batch_size = 1, 32
    assert job.steps(loader, 2) == 8
    assert job.steps(job.loader(range(99), 8, drop_last=True), 2) == 6  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a generator has no length"):
        job.steps((batch for batch in [1]), 2)
