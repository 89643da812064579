"""Whatever the config's `train` says: a run that is stopped and resumed ends in the bits of one that never was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

SLOW = pytest.mark.slow
HALF = {"init_scale": 1024.0, "growth_interval": 3}
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "fsdp": ({"strategy": "fsdp", "fsdp": {"units": ["Block"]}, "amp": {"level": "bf16"}, "clip_norm": 1.0}, ()),
    "hsdp": ({"strategy": "hsdp", "fsdp": {"shard_size": 1}, "amp": {"level": "O1", **HALF}}, SLOW),
    "fsdp of bf16": ({"strategy": "fsdp", "fsdp": {"param_dtype": "bfloat16"}, "accumulate": 2}, SLOW),
    "powersgd": (
        {"comm_hook": "powersgd", "powersgd": {"start_powerSGD_iter": 3, "matrix_approximation_rank": 2}},
        SLOW,
    ),
    "bf16 hook": ({"comm_hook": "bf16", "accumulate": 3}, SLOW),
    "O2": ({"amp": {"level": "O2", **HALF}, "accumulate": 2, "sync_batchnorm": True, "on_nan": "skip"}, SLOW),
    "O3": ({"amp": {"level": "O3", "loss_scale": 128}, "clip_value": 0.1, "recompute": ["Block"]}, SLOW),
    "compiled": ({"compile": {"backend": "eager"}, "on_nan": "stop", "deterministic": True}, SLOW),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (_, marks) in CASES.items()])
def test_each_train_technique_resumes_bit_for_bit_after_a_stop(tmp_path: Path, name: str) -> None:
    """Where it evaluates its averages, that is where it is stopped."""
    train = {"backend": "gloo", **CASES[name][0]}
    evaluate_at = None if "accumulate" in train else 6
    ends = []
    for kind, signal_at in (("whole", None), ("halves", 6)):
        record = tmp_path / kind
        params = {"record": str(record), "signal_at": signal_at, "evaluate_at": evaluate_at}
        run = Run(tmp_path / f"run-{kind}", "tests.train.techniques:resumes", params, train=train)
        for attempt in ("1.0", "1.1"):
            args = (programs.run_worker, str(run.path))
            with running(run.path / attempt, *args, size=2, env=run.attempt(attempt)) as ranks:
                assert ranks.join() == [0, 0], ranks.log
            if signal_at is None:
                break
            if attempt == "1.0":
                assert str(run.outcome("1.0")).startswith("requeue term"), ranks.log
        ends.append([(record / str(rank)).read_text() for rank in range(2)])
        assert run.outcome(attempt) == "done finished 20"
    assert ends[0] == ends[1]
