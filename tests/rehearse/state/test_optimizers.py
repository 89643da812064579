"""Optimizers are known by their form in files of torch, whatever a program calls them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.rehearse.state import compare, describe, of_files
from clusterdp.rehearse.state.end_state import EndState
from clusterdp.rehearse.state.optimizers import optimizers_of

TWO = {"a": torch.nn.Linear(3, 2), "b": torch.nn.Linear(5, 1)}


def saved(folder: Path, steps: int = 1, **more: Any) -> EndState:
    """Two models, each with an optimizer that has made so many steps."""
    tree: dict[str, Any] = {}
    for name, model in TWO.items():
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            sum(each.sum() for each in model.parameters()).backward()  # type: ignore[union-attr]
            optimizer.step()
        tree |= {name: model.state_dict(), f"opt_{name}": optimizer.state_dict()}
    torch.save({**tree, **more}, folder / "gan.pt")
    return of_files(folder, ["gan.pt"])


def test_optimizer_is_described_by_its_parameter_names(tmp_path: Path) -> None:
    found = optimizers_of(saved(tmp_path).values)
    assert [each.words for each in found.values()] == [
        "opt_a (the optimizer of a.weight, a.bias)",
        "opt_b (the optimizer of b.weight, b.bias)",
    ]


def test_optimizer_with_ambiguous_parameter_names_is_described_by_their_count(tmp_path: Path) -> None:
    found = optimizers_of(saved(tmp_path, ema=TWO["a"].state_dict()).values)
    assert found["opt_a."].words == "opt_a (the optimizer of 2 parameters)"


@pytest.mark.parametrize("key", ["opt_a.state.0.exp_avg", "opt_b.state.1.step", "opt_b.param_groups.0.eps"])
def test_optimizer_state_is_recognized_under_any_key(key: str, tmp_path: Path) -> None:
    assert saved(tmp_path).values[key].part == "optimizer"


def test_differing_optimizer_is_described_with_its_parameters_and_values(tmp_path: Path) -> None:
    first = saved(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    second = saved(other, steps=2)
    words = describe(compare(first, second), first.values)
    assert "opt_a (the optimizer of a.weight, a.bias) differs in 6 values (opt_a.state.0.step 1 against 2; " in words
