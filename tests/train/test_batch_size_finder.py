"""BatchSizeTable: when the search for a batch size ends, and what it advises."""

from __future__ import annotations

import pytest

from clusterdp.train.profile.batch_size_finder import MOST_ON_CPU, BatchSizeRow, BatchSizeTable


def searched(step_s: dict[int, float], *, on_gpu: bool = True, **facts: float) -> BatchSizeTable:
    sizes = BatchSizeTable(2, on_gpu=on_gpu)
    for size, seconds in step_s.items():
        if not sizes.go_on(size):
            break
        sizes.add(BatchSizeRow(size, facts.get("batch", size), int(facts.get("full", size)), seconds))
    return sizes


def test_batch_size_search_recommends_the_smallest_size_with_nearly_full_speed() -> None:
    sizes = searched({8: 0.010, 16: 0.011, 32: 0.012, 64: 0.0235, 128: 0.047, 256: 1.0})
    assert [row.size for row in sizes.rows] == [8, 16, 32, 64, 128]  # 256 is not tried
    best = sizes.best()
    assert best is not None and best.size == 32
    table, advice = sizes.lines()[:-2], sizes.lines()[-1]
    assert table[1].split() == ["8", "10.00", "1600"]  # both ranks' samples a second
    assert advice.startswith("Try batch_size: 32 of each rank, with 98 % of what 64 gives; another batch")
    assert advice.endswith("twice the batch is no faster any more.")


def test_batch_size_search_recommends_the_fastest_size_if_larger_ones_are_slower() -> None:
    assert "batch_size: 16 of each rank;" in searched({8: 0.01, 16: 0.01, 32: 0.04, 64: 0.1}).lines()[-1]


def test_batch_size_search_continues_after_one_slow_measurement() -> None:
    assert searched({8: 0.01, 16: 0.05, 32: 0.012}).go_on(64)


def test_batch_size_search_ends_at_out_of_memory_and_names_the_rank() -> None:
    sizes = searched({8: 0.01, 16: 0.01})
    sizes.out_of_memory(32, rank=3)
    assert not sizes.go_on(64)
    assert sizes.lines()[3].split(maxsplit=1) == ["32", "memory ran out on rank 3"]
    assert "batch_size: 16 of each rank;" in sizes.lines()[-1]


def test_batch_size_table_reports_out_of_memory_at_the_first_size() -> None:
    sizes = BatchSizeTable(1, on_gpu=True)
    sizes.out_of_memory(8, rank=0)
    assert sizes.lines()[-1] == "Not even the first fits into memory: begin with less (params.batch_size)."


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"full": 8}, "the same batches as 8. Pass it on to the loader."), ({"batch": 5}, "less than two such batches")],
)
def test_batch_size_search_ends_if_measured_batches_stop_growing(facts: dict[str, float], why: str) -> None:
    sizes = searched({8: 0.01, 16: 0.01}, **facts)
    assert not sizes.go_on(32)
    assert why in sizes.lines()[-1]


def test_batch_size_search_has_a_largest_size_on_cpus_only() -> None:
    speeding_up = {2**power: 0.01 for power in range(20)}
    assert searched(speeding_up, on_gpu=False).rows[-1].size == MOST_ON_CPU
    assert len(searched(speeding_up).rows) == 20
