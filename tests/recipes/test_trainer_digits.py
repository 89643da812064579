"""The digits with Trainer: preempted or not, the same history, the same bits, and it has learnt them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run

ENTRY = "clusterdp.recipes.trainer_digits:main"


@pytest.mark.slow
def test_preempted_trainer_recipe_ends_with_the_undisturbed_history_and_weights(tmp_path: Path) -> None:
    ends = []
    for name, preempted in (("whole", False), ("preempted", True)):
        run = Run(tmp_path / name, ENTRY, {"epochs": 5, "step_delay_s": 0.005 if preempted else 0.0})
        args = (programs.run_worker, str(run.path))
        if preempted:
            with running(tmp_path / "first", *args, size=2, env=run.attempt("1.0")) as ranks:
                ranks.reach(lambda run=run: run.step() > 200, "the third epoch")
                ranks.processes[1].terminate()
                assert ranks.join() == [0, 0], ranks.log
            assert (run.outcome("1.0") or "").startswith("requeue term")
        with running(tmp_path / f"last {name}", *args, size=2, env=run.attempt("1.1")) as ranks:
            assert ranks.join() == [0, 0], ranks.log
        rows = [r for r in run.metrics if "val_accuracy" in r]
        kept = ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy", "lr")
        ends.append((run.last("digest"), run.last("test_accuracy"), [[r[key] for key in kept] for r in rows]))
    assert json.dumps(ends[0]) == json.dumps(ends[1])
    assert ends[0][1] >= 0.97
