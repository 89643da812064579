"""Optimizers, averages and metrics of other packages resume with the same bits, or are refused at their first save.

Packages that are not installed are skipped: `pip install -r tests/checkpoint/packages.txt timm torchvision` has all.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer, StateError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

OPTIMIZERS = {
    "schedulefree": ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"),
    "prodigyopt": ("Prodigy",),
    "lion_pytorch": ("Lion",),
    "dadaptation": ("DAdaptAdam", "DAdaptSGD", "DAdaptLion"),
    "came_pytorch": ("CAME",),
    "torch_optimizer": ("Shampoo", "Ranger", "Yogi", "AggMo", "SWATS", "A2GradUni"),
    "pytorch_optimizer": ("SOAP", "ROSE", "SCION", "AdamMini", "Lookahead", "ScheduleFreeWrapper", "TRAC", "Conda"),
    "bitsandbytes.optim": ("Adam8bit", "AdEMAMix8bit", "Lion8bit", "PagedAdamW8bit", "RMSprop8bit"),
    "torchao.optim": ("AdamW8bit", "AdamW4bit"),
    "timm.optim": ("Adopt", "MADGRAD", "Kron", "NvNovoGrad"),
}
REFUSED = ("Conda", "AdamW8bit", "AdamW4bit")
WRAPPERS = ("Lookahead", "ScheduleFreeWrapper", "TRAC")


def built(package: str, name: str) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))
    module = importlib.import_module(package)
    if name in WRAPPERS:
        optimizer = getattr(module, name)(module.AdamP(model.parameters(), lr=1e-3))
    else:
        optimizer = getattr(module, name)(model if name == "AdamMini" else model.parameters(), lr=1e-3)
    if "ScheduleFree" in name:
        optimizer.train()
    return model, optimizer


def train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package, every in OPTIMIZERS.items() for name in every]
)
def test_optimizer_of_a_package_resumes_with_the_same_bits(tmp_path: Path, package: str, name: str) -> None:
    pytest.importorskip(package)
    model, optimizer = built(package, name)
    checkpointer = Checkpointer(tmp_path, {"model": model, "optimizer": optimizer})
    train(model, optimizer, range(5))
    if name in REFUSED:
        with pytest.raises(StateError, match="cannot be saved"):
            checkpointer.check(5)
        return
    checkpointer.save(5)
    train(model, optimizer, range(5, 10))
    other, again = built(package, name)
    second = Checkpointer(tmp_path, {"model": other, "optimizer": again})
    restored = second.restore()
    second.restore_rng()
    assert restored is not None
    assert restored.exact, restored.differences
    train(other, again, range(5, 10))
    for ours, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.view(torch.int32))


def test_ema_of_ema_pytorch_resumes_with_the_same_bits(tmp_path: Path) -> None:
    package = pytest.importorskip("ema_pytorch")

    def parts() -> dict[str, nn.Module]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        return {"model": model, "ema": package.EMA(model, beta=0.9, update_after_step=2, update_every=2)}

    def moved(state: dict[str, nn.Module], steps: range) -> None:
        for step in steps:
            with torch.no_grad():
                state["model"].weight.add_(step)  # type: ignore[operator]
            state["ema"].update()  # type: ignore[operator]

    before, after = parts(), parts()
    moved(before, range(7))
    Checkpointer(tmp_path, before).save(7)
    Checkpointer(tmp_path, after).restore()
    moved(before, range(7, 12))
    moved(after, range(7, 12))
    assert torch.equal(before["ema"].ema_model.weight, after["ema"].ema_model.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("name", ["MeanMetric", "MaxMetric", "CatMetric", "MeanSquaredError", "PearsonCorrCoef"])
def test_metric_of_torchmetrics_resumes_with_the_same_result(tmp_path: Path, name: str) -> None:
    package = pytest.importorskip("torchmetrics")

    def updated(metric: Any, steps: range) -> None:
        for step in steps:
            values = [torch.rand(8, generator=torch.Generator().manual_seed(step + i)) for i in (0, 1)]
            metric(*(values if name in ("MeanSquaredError", "PearsonCorrCoef") else values[:1]))

    before, after = getattr(package, name)(), getattr(package, name)()
    updated(before, range(5))
    Checkpointer(tmp_path, {"metric": before}).save(5)
    Checkpointer(tmp_path, {"metric": after}).restore()
    updated(before, range(5, 9))
    updated(after, range(5, 9))
    assert torch.equal(before.compute(), after.compute())
