"""of_run(): our own checkpoints as end states."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.state import compare, describe, of_run
from clusterdp.rundir import RunDir


class Plain:
    def __init__(self, state: dict[str, Any], per_rank: bool = False):
        self.state, self.per_rank = state, per_rank

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def save(run: Path, step: int = 4, weight: float = 1.0, position: int = 3, last_epoch: int = 4) -> RunDir:
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(weight)
    plan: dict[Any, Any] = {"last_epoch": last_epoch, "best": float("inf"), "tied": model.weight, 7: (1, 2)}
    state = {
        "model": model,
        "scheduler": Plain(plan),
        "loader": Plain({"position": position, "order": torch.arange(3)}, per_rank=True),
    }
    Checkpointer(run / "checkpoints", state).save(step, meta={"epoch": 2})
    return RunDir(run)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    random.seed(0)


def test_newest_checkpoint_of_a_run_is_read_under_readable_keys(tmp_path: Path) -> None:
    save(tmp_path, step=2)
    found = of_run(save(tmp_path))
    assert found is not None
    assert found.source == "the checkpoint of step 4"
    shown = {key: (leaf.part, leaf.rank, leaf.value) for key, leaf in found.values.items()}
    assert {key: about for key, about in shown.items() if ".rng." not in key} == {
        "step": ("step", None, 4),
        "meta.epoch": ("step", None, 2),
        "model.weight": ("model", None, None),
        "model.bias": ("model", None, None),
        "scheduler.last_epoch": ("scheduler", None, 4),
        "scheduler.best": ("scheduler", None, float("inf")),
        "scheduler.tied": ("scheduler", None, None),
        "scheduler.7.0": ("scheduler", None, 1),
        "scheduler.7.1": ("scheduler", None, 2),
        "rank0.loader.position": ("sampler", 0, 3),
        "rank0.loader.order": ("sampler", 0, None),
    }
    assert shown["rank0.rng.torch"] == ("rng", 0, None)
    assert shown["rank0.rng.python.1"] == ("rng", 0, None)
    weight = found.values["model.weight"]
    assert (weight.dtype, weight.shape) == ("float32", (2, 2))
    assert of_run(RunDir(tmp_path / "elsewhere"), tmp_path / "checkpoints") == found


def test_differing_values_of_two_clusterdp_checkpoints_are_named(tmp_path: Path) -> None:
    expected = of_run(save(tmp_path / "a"))
    assert expected is not None
    torch.manual_seed(0)
    assert compare(expected, of_run(save(tmp_path / "b")) or expected) == []
    torch.manual_seed(0)
    other = of_run(save(tmp_path / "c", weight=1.5, position=1, last_epoch=2))
    assert other is not None
    found = {each.key: each.what for each in compare(expected, other)}
    assert found == {
        "model.bias": "differs in 2 of 2 elements, by at most 0.5",
        "model.weight": "differs in 4 of 4 elements, by at most 0.5",
        "scheduler.last_epoch": "4 against 2",
        "scheduler.tied": "differs in 4 of 4 elements, by at most 0.5",
        "rank0.loader.position": "3 against 1",
    }
    words = describe(compare(expected, other))
    assert words.endswith("the position in the data differs in 1 value (rank0.loader.position 3 against 1)")
    torch.manual_seed(1)
    again = of_run(save(tmp_path / "d"))
    assert again is not None
    assert describe(compare(expected, again)).startswith("the random numbers' state differs in ")


def test_damaged_checkpoint_is_skipped_and_a_run_without_checkpoints_gives_none(tmp_path: Path) -> None:
    assert of_run(RunDir(tmp_path)) is None
    save(tmp_path, step=2)
    run = save(tmp_path)
    [data] = (run.checkpoints / "step_00000004").glob("*-of-*.safetensors")
    data.write_bytes(data.read_bytes()[:-1] + b"\xff")
    found = of_run(run)
    assert found is not None
    assert found.source == "the checkpoint of step 2"


def test_checkpoint_deleted_before_the_comparison_is_an_error_with_its_file(tmp_path: Path) -> None:
    a, b = of_run(save(tmp_path / "a")), of_run(save(tmp_path / "b", weight=2.0))
    assert a is not None and b is not None
    for file in (tmp_path / "b/checkpoints").rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"\.safetensors"):
        compare(a, b)
