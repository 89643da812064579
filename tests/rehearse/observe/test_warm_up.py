"""How long a training warms up: by its learning rate, or by an argument's name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterdp import config
from clusterdp.operate.record.run_history import read_history
from clusterdp.rehearse.observe.warm_up import steps_of_warm_up
from clusterdp.rundir import Ledger, RunDir


def found(folder: Path, rates: Sequence[float] = (), **values: Any) -> int:
    """In a run of 100 steps that has recorded these rates, one each 10 steps."""
    run = RunDir(folder / "run")
    run.metrics.mkdir(parents=True)
    Ledger(run, "submit-7", "submit").write("submitted", job="7", name="x")
    Ledger(run, "7.0", "batch").write("started", job="7")
    records = [{"time": 1e9 + i, "step": 10 * (i + 1), "loss": 1.0, "lr": rate} for i, rate in enumerate(rates)]
    (run.metrics / "7.0.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    given = {"entry": "a.b:c"} if not {"script", "command"} & values.keys() else {}
    return steps_of_warm_up(read_history(run), config.from_mapping({**given, **values}), 100)


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        ([0.1, 0.2, 0.3, 0.3, 0.2], 30),
        ([0.1, 0.1, 0.3, 0.3], 30),
        ([0.3, 0.2, 0.1], 0),
        ([0.3, 0.1, 0.4, 0.2], 0),  # restarts: its first rise is none of a beginning
        ([0.1, 0.2, 0.3], 30),  # made so short that it warms up all the time
        ([0.3], 0),
    ],
)
def test_warm_up_length_is_read_from_the_initial_learning_rate_rise(
    tmp_path: Path, rates: list[float], steps: int
) -> None:
    assert found(tmp_path, rates) == steps


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({"params": {"warmup_steps": 20}}, 20),
        ({"params": {"warmup_steps": 500}}, 100),
        ({"params": {"warmup_steps": 500}, "rehearse": {"params": {"warmup_steps": 8}}}, 8),
        ({"params": {"warmup_ratio": 0.05}}, 5),
        ({"params": {"warmup_epochs": 1, "epochs": 4}}, 25),
        ({"params": {"warmup_epochs": 1}}, 0),
        ({"params": {"warmup_steps": 0}}, 0),
        ({"params": {"warmup": "linear"}}, 0),
        ({"command": "python train.py --warmup_iters=10"}, 10),
        ({"command": "python train.py --num-warmup-steps 30 --warm-up-steps 40"}, 40),
        ({"command": ["python", "train.py", "trainer.warmup_frac=0.1"]}, 10),
        ({"command": "python train.py --warmup-schedule cosine"}, 0),
        ({"command": "python train.py", "rehearse": {"args": ["--warmup", "12"]}}, 12),
        ({"script": "exec python train.py --lr 1 \\\n  --warmup_steps \\\n 16\n"}, 16),
    ],
)
def test_warm_up_length_is_read_from_warmup_arguments_of_params_and_command(
    tmp_path: Path, values: dict[str, Any], steps: int
) -> None:
    assert found(tmp_path, **values) == steps
