"""Metrics: they must not hold the step up, or write what a JSON reader refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from clusterdp.train.output.metric_log import MetricLog


def records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metric_log_writes_one_step_per_interval_and_the_newest_at_flush(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl", every_s=3600.0)
    for step in range(5):
        log.step({"step": step}, {"loss": torch.tensor(step / 2)})
    log.flush()
    assert [(r["step"], r["loss"]) for r in records(tmp_path / "m.jsonl")] == [(0, 0.0), (4, 2.0)]


def test_metric_log_write_flushes_pending_steps_before_the_result(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl", every_s=3600.0)
    log.step({"step": 1}, {"loss": 1.0})
    log.step({"step": 2}, {"loss": 0.5})
    log.write(step=2, test_accuracy=0.98)
    assert [r.get("loss", r.get("test_accuracy")) for r in records(tmp_path / "m.jsonl")] == [1.0, 0.5, 0.98]


def test_metric_log_writes_nan_and_infinity_as_json_strings(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "m.jsonl")
    log.write(loss=float("nan"), best=torch.tensor(float("inf")))
    assert records(tmp_path / "m.jsonl")[0]["loss"] == "nan"
    assert records(tmp_path / "m.jsonl")[0]["best"] == "inf"


def test_metric_log_without_a_path_writes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = MetricLog(None)
    log.step({"step": 1}, {"loss": 1.0})
    log.write(accuracy=1.0)
    log.flush()
    assert log.path is None and not list(tmp_path.iterdir())
