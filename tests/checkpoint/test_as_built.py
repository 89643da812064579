"""What training has changed and no state_dict() has, or no load_state_dict() takes back, is restored all the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer, Restored, StateError
from clusterdp.checkpoint.format.manifest import decode
from tests.checkpoint.gang import on_ranks


class Net(torch.nn.Module):
    def __init__(self, theta: float = 10.0, queue: int = 4) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
        self.register_buffer("frequencies", theta ** torch.arange(3.0), persistent=False)
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool), persistent=False)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("queue", torch.zeros(queue))
        self.register_buffer("seen", None)


def restore(folder: Path, **state: Any) -> Restored:
    restored = Checkpointer(folder, state).restore()
    assert restored is not None
    return restored


def tensors_in(folder: Path) -> set[str]:
    (path,) = folder.rglob("MANIFEST*")
    return {entry.name for entry in decode(path.read_bytes(), str(path.relative_to(folder))).layout.entries}


def test_nonpersistent_buffer_is_saved_and_restored_only_if_training_changed_it(tmp_path: Path) -> None:
    model = Net()
    checkpointer = Checkpointer(tmp_path, {"model": model})
    model.frequencies.data.mul_(2)  # type: ignore[operator]
    model.cache = torch.arange(6.0)
    checkpointer.save(1)
    assert "model/mask" not in tensors_in(tmp_path), "the program makes it again"
    other = Net()
    assert restore(tmp_path, model=other).exact
    assert torch.equal(other.frequencies, model.frequencies)  # type: ignore[arg-type]
    assert torch.equal(other.cache, model.cache)
    Checkpointer(tmp_path / "again", {"model": other}).save(2)
    third = Net()
    restore(tmp_path / "again", model=third)
    assert torch.equal(third.cache, model.cache), "what was restored has been changed, too"


def test_restore_keeps_a_buffer_with_a_new_initial_value_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Net()
    checkpointer = Checkpointer(tmp_path, {"model": model})
    model.frequencies.mul_(2)  # type: ignore[operator]
    checkpointer.save(1)
    other = Net(theta=500.0)
    with caplog.at_level(logging.WARNING):
        restored = restore(tmp_path, model=other)
    assert torch.equal(other.frequencies, 500.0 ** torch.arange(3.0))  # type: ignore[arg-type]
    assert not restored.exact
    (line,) = restored.differences
    assert line.startswith("model/frequencies: training had changed this buffer")
    assert line in caplog.text


@pytest.mark.parametrize("frozen", ["body", ""])
def test_restore_freezes_parameters_frozen_during_training_and_keeps_newly_frozen_ones_frozen(
    tmp_path: Path, frozen: str
) -> None:
    model = Net()
    checkpointer = Checkpointer(tmp_path, {"model": model})
    if frozen:
        model.body.requires_grad_(False)
    checkpointer.save(1)
    other = Net()
    other.head.requires_grad_(False)
    assert restore(tmp_path, model=other).exact
    assert not other.head.weight.requires_grad
    assert other.body.weight.requires_grad is not (frozen == "body")


def test_buffers_resized_or_created_during_training_are_restored(tmp_path: Path) -> None:
    model = Net()
    checkpointer = Checkpointer(tmp_path, {"model": model})
    model.queue = torch.arange(9.0)
    model.seen = torch.arange(7)
    checkpointer.save(1)
    other = Net()
    assert restore(tmp_path, model=other).exact
    assert torch.equal(other.queue, model.queue)
    assert torch.equal(other.seen, model.seen)
    with pytest.raises(StateError, match=r"of another shape: queue \(\(9,\) in the checkpoint, \(5,\) here\)"):
        restore(tmp_path, model=Net(queue=5))


def test_restore_fails_if_the_program_builds_a_buffer_of_different_size(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": Net()}).save(1)
    with pytest.raises(StateError, match="of another shape: queue"):
        restore(tmp_path, model=Net(queue=5))


class Extra(torch.nn.Module):
    """As Transformer Engine's layers have it: bytes, whose number varies."""

    def __init__(self) -> None:
        super().__init__()
        self.big = torch.nn.Parameter(torch.zeros(2_000_000))
        self.kept = torch.zeros(0, dtype=torch.uint8)

    def get_extra_state(self) -> torch.Tensor:
        return self.kept

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.kept = state


def test_module_extra_state_of_different_length_is_restored_into_its_own_memory(tmp_path: Path) -> None:
    model, other = torch.nn.Sequential(Extra()), torch.nn.Sequential(Extra())
    model[0].kept = torch.arange(100, dtype=torch.uint8).repeat(100)
    Checkpointer(tmp_path, {"model": model}).save(1)
    assert restore(tmp_path, model=other).exact
    assert torch.equal(other[0].kept, model[0].kept)
    assert other[0].kept.untyped_storage().nbytes() == 10_000


def training(optimizer_of: Any = torch.optim.Adam, *, named: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Net()
    parameters = model.body.named_parameters(prefix="body") if named else model.body.parameters()
    optimizer = optimizer_of(parameters, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(state: dict[str, Any], first: int, last: int, *, named: bool = False) -> None:
    """In step 2 the head is trained, too."""
    model: Net = state["model"]
    for step in range(first, last):
        if step == 2:
            head = model.head.named_parameters(prefix="head") if named else model.head.parameters()
            state["optimizer"].add_param_group({"params": head, "lr": 0.5, "weight_decay": 0.1})
        torch.manual_seed(step)
        model.zero_grad()
        model.head(model.body(torch.randn(4, 3))).square().sum().backward()
        state["optimizer"].step()


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("at", [2, 3])
def test_param_group_added_during_training_is_restored_by_the_same_script(tmp_path: Path, at: int, named: bool) -> None:
    whole = training(named=named)
    checkpointer = Checkpointer(tmp_path, whole)
    train(whole, 0, at, named=named)
    checkpointer.save(at)
    train(whole, at, 5, named=named)
    for folder in (tmp_path, tmp_path / "again"):
        state = training(named=named)
        assert restore(folder, **state).exact
        assert len(state["optimizer"].param_groups) == (2 if at == 3 else 1)
        Checkpointer(tmp_path / "again", state).save(at)
    train(state, at, 5, named=named)
    for mine, other in zip(state["model"].parameters(), whole["model"].parameters(), strict=True):
        assert torch.equal(mine, other)
    groups = [thing["optimizer"].state_dict()["param_groups"] for thing in (state, whole)]
    assert groups[0] == groups[1]


def test_save_warns_once_about_an_added_param_group_outside_all_modules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = training()
    checkpointer = Checkpointer(tmp_path, state)
    state["optimizer"].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    with caplog.at_level(logging.WARNING):
        checkpointer.save(1)
        checkpointer.save(2)
    assert caplog.text.count("optimizer: a group was added to it whose parameters are of no module") == 1
    with pytest.raises(StateError, match="different number of parameter groups"):
        restore(tmp_path, **training())
    here = training()
    here["optimizer"].add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    assert restore(tmp_path, **here).exact


def grow(rank: int, size: int, folder: str) -> list[Any]:
    """A cache that has another size on each rank; and one of the same size with other values."""
    logging.disable()
    answers = []
    for grown in (3 + rank, 6):
        model = Net()
        checkpointer = Checkpointer(f"{folder}/{grown == 6}", {"model": model})
        model.cache = torch.arange(float(grown)) + rank
        model.body.requires_grad_(False)
        checkpointer.save(1)
        other = Net()
        restored = Checkpointer(f"{folder}/{grown == 6}", {"model": other}).restore()
        assert restored is not None
        assert restored.exact, restored.differences
        assert not other.body.weight.requires_grad
        answers.append(other.cache.tolist())
    return answers


def test_each_rank_restores_its_own_values_of_a_changed_buffer(tmp_path: Path) -> None:
    answers = on_ranks(2, grow, str(tmp_path))
    assert answers == [[[0.0, 1.0, 2.0], [*map(float, range(6))]], [[1.0, 2.0, 3.0, 4.0], [*map(float, range(1, 7))]]]


def test_histogram_observer_continues_identically_after_a_restore(tmp_path: Path) -> None:
    from torch.ao.quantization.observer import HistogramObserver

    observer, again = HistogramObserver(), HistogramObserver()
    observer(torch.rand(4, 2))
    Checkpointer(tmp_path, {"observer": observer}).save(1)
    restore(tmp_path, observer=again)
    for each in (observer, again):
        each(torch.arange(8.0))
    assert torch.equal(observer.histogram, again.histogram)


class LateMask(torch.nn.Linear):
    """Registers its buffers in the first forward pass."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.scale = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.rand(2))
            del self.scale
            self.register_buffer("scale", torch.rand(3), persistent=False)
        return super().forward(x) * self.mask


def test_buffers_registered_in_the_first_forward_pass_are_restored(tmp_path: Path) -> None:
    model = torch.nn.Sequential(LateMask())
    checkpointer = Checkpointer(tmp_path, {"model": model})
    model(torch.ones(2))
    checkpointer.save(1)
    again = torch.nn.Sequential(LateMask())
    restored = Checkpointer(tmp_path, {"model": again}).restore()
    assert restored is not None
    assert restored.exact
    assert torch.equal(again(torch.ones(2)), model(torch.ones(2)))
    assert torch.equal(again[0].scale, model[0].scale)
    assert again.state_dict().keys() == model.state_dict().keys()


def test_lazy_modules_are_restored_before_their_first_forward_pass(tmp_path: Path) -> None:
    def build() -> dict[str, Any]:
        layers = torch.nn.LazyLinear(3), torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(1)
        model = torch.nn.Sequential(*layers)
        return {"model": model, "optimizer": torch.optim.Adam(model.parameters())}

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        loss: torch.Tensor = model(torch.arange(8.0).view(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    state, other = build(), build()
    checkpointer = Checkpointer(tmp_path, state)
    train(**state)
    checkpointer.save(1)
    assert restore(tmp_path, **other).exact
    assert [train(**other) for _ in range(3)] == [train(**state) for _ in range(3)]


def test_added_parameters_are_named_once_at_a_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.ParameterList([torch.ones(1)])
    checkpointer = Checkpointer(tmp_path, {"model": model})
    checkpointer.save(1)
    assert not caplog.text
    model.append(torch.nn.Parameter(torch.ones(1)))
    checkpointer.save(2)
    checkpointer.save(3)
    assert caplog.text.count("model: training has added parameters (1). A resume is refused unless") == 1
