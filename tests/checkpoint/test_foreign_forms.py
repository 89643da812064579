"""Objects of other libraries whose state_dict() has a form of its own, or leaves out what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer, StateError


class Wrapping(torch.optim.Adam):
    """As bitsandbytes': a part of each parameter's state is in a dict of its own in state_dict()."""

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["state"] = {
            number: {"step": of["step"], "wrapped": {key: value for key, value in of.items() if key != "step"}}
            for number, of in state["state"].items()
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        plain = {number: {"step": of["step"], **of["wrapped"]} for number, of in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": plain})


class Ahead(torch.optim.Optimizer):
    """As pytorch_optimizer's Lookahead: no `param_groups` in state_dict()."""

    def __init__(self, base: torch.optim.Optimizer):
        self.base, self.steps = base, 0
        super().__init__(base.param_groups, base.defaults)

    def step(self, closure: Any = None) -> None:
        self.steps += 1
        self.base.step()

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base.state_dict(), "steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict["base"])
        self.steps = state_dict["steps"]


class Metric(nn.Module):
    """As torchmetrics': its sums are plain attributes, and its state_dict() is empty."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self._defaults = {"total": torch.zeros(()), "seen": []}
        self._persistent = dict.fromkeys(self._defaults, False)
        self.total, self.seen, self._update_count = torch.zeros(()), list[torch.Tensor](), 0
        self._computed: Any = None

    def update(self, value: float) -> None:
        self.total = self.total + value
        self.seen.append(torch.tensor(value))
        self._update_count += 1


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["wrapping", "ahead"])
def test_optimizer_with_state_of_its_own_form_resumes_exactly(tmp_path: Path, kind: str) -> None:
    def built() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        made = Wrapping(model.parameters()) if kind == "wrapping" else Ahead(torch.optim.Adam(model.parameters()))
        return model, made

    model, optimizer = built()
    train(model, optimizer, 3)
    Checkpointer(tmp_path, {"model": model, "optimizer": optimizer}).save(3)
    train(model, optimizer, 3)
    other, again = built()
    restored = Checkpointer(tmp_path, {"model": other, "optimizer": again}).restore()
    assert restored is not None
    assert restored.exact
    train(other, again, 3)
    assert torch.equal(other.weight, model.weight)


def test_metric_with_an_empty_state_dict_keeps_its_sums(tmp_path: Path) -> None:
    metrics = {"loss": Metric(), "all": nn.ModuleDict({"a": Metric()})}
    checkpointer = Checkpointer(tmp_path, metrics)
    metrics["loss"].update(2.5)
    metrics["all"]["a"].update(1.5)
    checkpointer.save(1)
    again = {"loss": Metric(), "all": nn.ModuleDict({"a": Metric()})}
    Checkpointer(tmp_path, again).restore()
    for metric, total in ((again["loss"], 2.5), (again["all"]["a"], 1.5)):
        assert (metric.total, metric._update_count, [*map(float, metric.seen)]) == (total, 1, [total])


def test_metric_within_a_model_must_be_in_the_state_by_itself(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model.head = nn.Sequential()
    model.head.acc = Metric()
    with pytest.raises(StateError, match=r"model/head.acc: the sums of a Metric .*: 'head.acc': model.head.acc"):
        Checkpointer(tmp_path, {"model": model})
    Checkpointer(tmp_path, {"model": model, "head.acc": model.head.acc}).save(1)
