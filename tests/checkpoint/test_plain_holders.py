"""Tensors and dicts of values are in a state as they are, and a restore fills them in place."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer, StateError


def test_restore_fills_dicts_and_tensors_in_place(tmp_path: Path) -> None:
    best: dict[str, Any] = {"loss": 0.25, "at": {"epoch": 3}, "seen": torch.arange(3), "names": ["a"]}
    Checkpointer(tmp_path, {"best": best, "mean": torch.ones(2), "count": {"steps": 7}}).save(1)
    inner, seen, mean = {"epoch": 0}, torch.zeros(3, dtype=torch.int64), torch.zeros(2)
    again: dict[str, Any] = {"loss": math.inf, "at": inner, "seen": seen, "old": 1}
    count: dict[str, int] = {}
    restored = Checkpointer(tmp_path, {"best": again, "mean": mean, "count": count}).restore()
    assert restored is not None
    assert restored.exact
    assert {**again, "seen": seen.tolist()} == {**best, "seen": [0, 1, 2]}
    assert again["at"] is inner
    assert again["seen"] is seen
    assert mean.tolist() == [1, 1]
    assert count == {"steps": 7}


def test_restored_parameter_outside_a_module_keeps_its_adam_moments(tmp_path: Path) -> None:
    def built() -> tuple[nn.Parameter, torch.optim.Optimizer]:
        alpha = nn.Parameter(torch.zeros(()))
        return alpha, torch.optim.Adam([alpha])

    alpha, optimizer = built()
    alpha.sum().backward()
    optimizer.step()
    Checkpointer(tmp_path, {"alpha": alpha, "optimizer": optimizer}).save(1)
    other, again = built()
    Checkpointer(tmp_path, {"alpha": other, "optimizer": again}).restore()
    assert torch.equal(other, alpha)
    assert torch.equal(again.state[other]["exp_avg"], optimizer.state[alpha]["exp_avg"])


def test_restoring_into_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"mean": torch.ones(2)}).save(1)
    with pytest.raises(
        StateError, match=r"mean: .* float32 of \(2,\) when it was saved, and is float32 of \(3,\) here"
    ):
        Checkpointer(tmp_path, {"mean": torch.ones(3)}).restore()


def test_plain_number_as_state_is_refused_with_the_dict_to_write(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"best: a float has no state_dict\(\) .* a dict of values, as in"):
        Checkpointer(tmp_path, {"best": 0.5})


def test_unsavable_value_in_a_dict_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"best/fn: a function cannot be saved"):
        Checkpointer(tmp_path, {"best": {"fn": test_restoring_into_a_tensor_of_another_shape_is_refused}}).save(1)


def test_tensor_subclass_is_refused_before_the_first_save(tmp_path: Path) -> None:
    """Such as a quantised weight: a run would else end ten minutes later."""

    class Quantised(torch.Tensor):
        pass

    model = nn.Linear(2, 2)
    model.register_buffer("scale", torch.ones(1).as_subclass(Quantised))
    with pytest.raises(StateError, match=r"model/scale: a .*Quantised cannot be saved"):
        Checkpointer(tmp_path, {"model": model})
