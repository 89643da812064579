"""Stopwatch: a breakdown that adds up to the step, and words that name the rank, the share and what to try."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from clusterdp.train import JobHandle
from clusterdp.train.profile.stopwatch import NOTHING, WARM_UP, Stopwatch, diagnose, stragglers, table


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes when told to."""

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr("clusterdp.train.profile.stopwatch.time", clock)
    return clock


def test_stopwatch_laps_exclude_the_warm_up_steps(job: JobHandle, clock: Any) -> None:
    watch = Stopwatch()
    for step in range(WARM_UP + 4):
        clock.now += 0.002 if step >= WARM_UP else 100.0
        watch.lap("data")
        clock.now += 0.006
        watch.lap("forward")
        clock.now += 50.0
        watch.skip()
        watch.step()
    report = watch.report(job.group, workers=2, cpus=8)
    assert report is not None
    assert report["steps"] == 4
    assert report["ranks"][0]["ms"] == pytest.approx({"data": 2.0, "forward": 6.0})
    assert report["diagnosis"] == ["rank 0 waits 25 % of the time for data: 2 workers on 8 cpus; try num_workers: 7."]


def test_report_counts_the_gpus_queued_work_as_step_time(
    job: JobHandle, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has queued the steps: they are not done."""
    waits = [70.0, 0.008]  # of the warm-up, and of four steps

    def synchronize() -> None:
        clock.now += waits.pop(0)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    watch = Stopwatch()
    for _ in range(WARM_UP + 4):
        clock.now += 0.001
        watch.lap("forward")
        watch.step()
    report = watch.report(job.group)
    assert report is not None
    assert report["ranks"][0]["ms"] == pytest.approx({"forward": 1.0, "step": 2.0})


def test_stopwatch_without_enough_steps_makes_no_report(job: JobHandle) -> None:
    assert Stopwatch().report(job.group) is None


def test_loop_writes_its_step_times_into_the_run_folder(job: JobHandle) -> None:
    loop = job.loop([[i] for i in range(20)], {})
    for _ in loop:
        job.stopwatch.lap("mine")
    assert job._run is not None
    report = json.loads(job._run.attempt("1.0").times.read_text())
    assert report["ranks"][0]["ms"].keys() >= {"data", "mine", "step"}
    assert report["steps"] == 20 - WARM_UP


def test_time_of_moving_a_batch_counts_as_copy_not_data(job: JobHandle, clock: Any) -> None:
    def slow(seconds: float, batch: Any) -> Any:
        clock.now += seconds
        return batch

    batches = (slow(0.002, batch) for batch in range(WARM_UP + 4))
    for _ in job.loop(batches, {}, move=lambda batch: slow(0.006, batch)):
        clock.now += 0.002
        job.stopwatch.lap("forward")
    report = job.stopwatch.report(job.group, workers=2, cpus=8)
    assert report is not None
    times = report["ranks"][0]["ms"]
    assert (times["data"], times["copy"], times["forward"]) == pytest.approx((2.0, 6.0, 2.0))
    assert [line.partition(":")[0] for line in report["diagnosis"]] == [
        "rank 0 spends 60 % of the time moving batches and transforming them (move=, transform=)",
        "rank 0 waits 20 % of the time for data",
    ]


def rank(workers: int | None = 0, cpus: int = 1, **ms: float) -> dict[str, Any]:
    return {"ms": ms, "workers": workers, "cpus": cpus}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([rank(data=1, forward=9)], NOTHING),
        (
            [rank(data=5, forward=5), rank(1, 2, data=6, forward=4)],
            "rank 1 waits 60 % of the time for data: 1 workers on 2 cpus; ask for more (resources.cpus_per_task: 4)",
        ),
        (
            [rank(None, data=5, forward=5)],
            "rank 0 waits 50 % of the time for data: its loader is not a DataLoader; make that one faster.",
        ),
        (
            [rank(data=1, copy=4, forward=5)],
            "rank 0 spends 40 % of the time moving batches and transforming them (move=, transform=): transform less,",
        ),
        (
            [rank(forward=9, checkpoint=1)],
            "rank 0 spends 10 % of the time in saves; save more rarely (checkpoint.every_s)",
        ),
        (
            [rank(forward=2, backward=8), rank(forward=7, backward=3)],
            "the others wait for rank 1: 5.0 ms a step longer than the median, most of it in forward. Look at its node",
        ),
    ],
)
def test_step_time_diagnosis_names_rank_cause_and_remedy_of_a_slowdown(ranks: list[Any], said: str) -> None:
    (line,) = diagnose(ranks)
    assert line.startswith(said)


def test_step_time_table_has_a_line_per_rank() -> None:
    assert table([rank(data=1, forward=3), rank(data=2, forward=2, mine=1)]) == [
        "rank   ms a step        data     forward        mine",
        "   0        4.00      25.0 %      75.0 %       0.0 %",
        "   1        5.00      40.0 %      40.0 %      20.0 %",
    ]


def test_straggler_is_a_rank_with_more_own_work_than_the_median() -> None:
    ranks = [rank(forward=3, backward=7) | {"node": f"n{number}"} for number in range(4)]
    assert stragglers(ranks) == []
    ranks[2] = rank(forward=6, backward=4) | {"node": "n2"}
    (slow,) = stragglers(ranks)
    assert slow == {"rank": 2, "node": "n2", "more_ms": 3, "share": pytest.approx(0.3), "most_in": "forward"}


def test_waiting_for_a_straggler_is_not_counted_as_work() -> None:
    ranks = [rank(data=1, step=9), rank(data=1, step=9), rank(data=6, step=4)]
    (slow,) = stragglers(ranks)
    assert (slow["rank"], slow["most_in"], slow["more_ms"]) == (2, "data", 5)
    assert stragglers([rank(data=1, step=9), rank(data=1, step=4)]) == []
