"""Recipes with a Trainer: preempted or not, the same history, the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train import programs
from tests.train.ranks import running
from tests.train.runs import Run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "epochs", "until"),
    [
        pytest.param("clusterdp.recipes.trainer_digits", 5, 200, id="digits"),
        pytest.param("configs.gan", 4, 60, id="gan"),
        pytest.param("configs.unet", 3, 30, id="unet"),
        pytest.param("configs.dali", 3, 60, id="dali"),
        pytest.param("configs.pipeline", 4, 60, id="pipeline"),
    ],
)
def test_preempted_recipe_ends_with_the_undisturbed_rows_and_weights(
    tmp_path: Path, recipe: str, epochs: int, until: int
) -> None:
    """until: the step after which rank 1 gets SIGTERM."""
    if recipe == "configs.dali":
        pytest.importorskip("nvidia.dali")
    ends = []
    for name, preempted in (("whole", False), ("preempted", True)):
        params = {"epochs": epochs, "step_delay_s": 0.01 if preempted else 0.0}
        run = Run(tmp_path / name, f"{recipe}:main", params)
        args = (programs.run_worker, str(run.path))
        if preempted:
            with running(tmp_path / "first", *args, size=2, env=run.attempt("1.0")) as ranks:
                ranks.reach(lambda run=run: run.step() > until, f"step {until}")
                ranks.processes[1].terminate()
                assert ranks.join() == [0, 0], ranks.log
            assert (run.outcome("1.0") or "").startswith("requeue term")
        with running(tmp_path / f"last {name}", *args, size=2, env=run.attempt("1.1")) as ranks:
            assert ranks.join() == [0, 0], ranks.log
        rows = [{**row, "time": 0} for row in run.metrics if "lr" in row and "total" not in row]
        ends.append((run.last("digest"), rows))
    assert json.dumps(ends[0]) == json.dumps(ends[1])
    assert len(ends[0][1]) == (0 if recipe in ("configs.gan", "configs.pipeline") else epochs)
