"""Metrics: they must not hold the step up, or write what a JSON reader refuses."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from clusterdp.train.output.metric_log import MetricLog


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_steps_are_thinned_by_time_and_the_newest_is_never_lost(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl", every_s=3600.0)
    for step in range(5):
        log.step({"step": step}, {"loss": torch.tensor(step / 2)})
    log.flush()
    assert [(r["step"], r["loss"]) for r in records(tmp_path / "m.jsonl")] == [(0, 0.0), (4, 2.0)]


def test_results_are_written_at_once_and_after_the_steps_before_them(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl", every_s=3600.0)
    log.step({"step": 1}, {"loss": 1.0})
    log.step({"step": 2}, {"loss": 0.5})
    log.write(step=2, test_accuracy=0.98)
    assert [r.get("loss", r.get("test_accuracy")) for r in records(tmp_path / "m.jsonl")] == [1.0, 0.5, 0.98]


def test_not_a_number_is_written_so_that_json_readers_can_read_it(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl")
    log.write(loss=float("nan"), best=torch.tensor(float("inf")))
    assert records(tmp_path / "m.jsonl")[0]["loss"] == "nan"
    assert records(tmp_path / "m.jsonl")[0]["best"] == "inf"


def test_without_a_path_nothing_happens() -> None:
    log = MetricLog(None)
    log.step({"step": 1}, {"loss": 1.0})
    log.write(accuracy=1.0)
    log.flush()
