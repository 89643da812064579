"""Programs that forget a part of what they train, each by its name, and correct ones, of which nothing is said."""

from __future__ import annotations

import copy
import functools
import math
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from clusterdp.rundir import RunDir, read_events
from clusterdp.train import JobHandle

Run = Callable[..., Any]  # takes a state, returns a loop
calls = {"number": 0}
passes = 0


def net() -> Any:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def built() -> tuple[Any, Any]:
    model = net()
    return model, AdamW(model.parameters(), 1e-2)


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss = mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@torch.no_grad()
def average(parts: Iterable[Any], model: Any) -> None:
    for part, parameter in zip(parts, model.parameters(), strict=True):
        part.mul_(0.9).add_(parameter, alpha=0.1)


class Average:
    def __init__(self, model: Any):
        self.parts = [parameter.detach().clone() for parameter in model.parameters()]


class SavedAverage(Average):
    def state_dict(self) -> Any:
        return {"parts": self.parts}

    def load_state_dict(self, state: Any) -> None:
        self.parts = state["parts"]


class Counter:
    def __init__(self) -> None:
        self.number = 0


class Center(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(1))

    def forward(self, x: Any, y: Any) -> Any:
        self.center = self.center * 0.9 + x.detach().mean(0) * 0.1
        return mse_loss(x - self.center, y)


class Queue(nn.Module):
    """Keeps a tensor and a number that are in no state_dict()."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.queue, self.place = nn.Linear(4, 1), torch.zeros(16, 1), 0

    def forward(self, x: Any) -> Any:
        y = self.net(x)
        self.queue[self.place : self.place + 2] = y.detach()
        self.place = (self.place + 2) % 16
        return y - self.queue.mean()


class Features(nn.Module):
    """Keeps what it has computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last, self.cache = nn.Linear(4, 1), torch.zeros(1), dict[str, Any]()

    def forward(self, x: Any) -> Any:
        self.last = self.cache["x"] = self.net(x)
        return self.last


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.critic = net(), nn.Linear(1, 1)


def adversarial(model: Any, critic: Any, optimizer: Any, x: Any) -> None:
    loss = critic(model(x).detach()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def model_average(run: Run) -> None:
    model, optimizer = built()
    ema = copy.deepcopy(model)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)
        average(ema.parameters(), model)


def dict_average(run: Run) -> None:
    model, optimizer = built()
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)
        average(shadow.values(), model)


def object_average(run: Run) -> None:
    model, optimizer = built()
    helpers = {"all": [Average(model)]}
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)
        for helper in helpers["all"]:
            average(helper.parts, model)


def torch_average(run: Run) -> None:
    model, optimizer = built()
    swa = AveragedModel(model)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)
        swa.update_parameters(model)


def critic_without_moments(run: Run) -> None:
    model, optimizer = built()
    critic = nn.Linear(1, 1)
    second = SGD(critic.parameters(), 0.1)
    for x, y in run({"model": model, "optimizer": optimizer}):
        adversarial(model, critic, second, x)
        train(model, optimizer, x, y)


def critic_of_a_pair(run: Run) -> None:
    pair = Pair()
    optimizer, second = AdamW(pair.net.parameters()), SGD(pair.critic.parameters(), 0.1)
    for x, y in run({"net": pair.net, "optimizer": optimizer}):
        adversarial(pair.net, pair.critic, second, x)
        train(pair.net, optimizer, x, y)


def teacher_in_training(run: Run) -> None:
    model, optimizer = built()
    teacher = copy.deepcopy(model)
    for x, _ in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, teacher(x).detach())


def buffer_of_a_loss(run: Run) -> None:
    model, optimizer = built()
    criterion = Center()
    for x, y in run({"model": model, "optimizer": optimizer}):
        criterion(model(x), y).backward()
        optimizer.step()


def attributes_of_a_module(run: Run) -> None:
    model = Queue()
    optimizer = SGD(model.parameters(), 0.1)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)


def parameter_of_an_optimizer(run: Run) -> None:
    model, optimizer = built()
    weight = nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [weight]})
    for x, y in run({"model": model, "optimizer": optimizer}):
        (mse_loss(model(x), y) * torch.exp(-weight) + weight).sum().backward()
        optimizer.step()


def scaler_left_out(run: Run) -> None:
    model, optimizer = built()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    for x, y in run({"model": model, "optimizer": optimizer}):
        scaler.scale(mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


def generator_in_a_closure(run: Run) -> None:
    model, optimizer = built()
    mix = random.Random(5)

    def mixed(x: Any) -> Any:
        return x * mix.random()

    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, mixed(x), y)


def array_of_an_object(run: Run) -> None:
    model, optimizer = built()
    norm = SimpleNamespace(mean=numpy.zeros(4))
    for x, y in run({"model": model, "optimizer": optimizer}):
        norm.mean += x.numpy().mean(0)
        train(model, optimizer, x - torch.from_numpy(norm.mean).float(), y)


def object_with_a_state(run: Run) -> None:
    model, optimizer = built()
    ema = SavedAverage(model)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)
        ema.parts = [0.9 * part for part in ema.parts]


def counter_of_a_closure(run: Run) -> None:
    model, optimizer = built()
    number = 0

    def rate() -> float:
        nonlocal number
        number += 1
        return 1e-2 / number

    for x, y in run({"model": model, "optimizer": optimizer}):
        optimizer.param_groups[0]["lr"] = rate()
        train(model, optimizer, x, y)


def warm(optimizer: Any) -> None:
    global passes
    calls["number"] += 1
    passes += 1
    optimizer.param_groups[0]["lr"] = 1e-2 / passes


def counters_of_a_helper(run: Run) -> None:
    model, optimizer = built()
    for x, y in run({"model": model, "optimizer": optimizer}):
        warm(optimizer)
        train(model, optimizer, x, y)


def counter_of_a_hook(run: Run) -> None:
    model, optimizer = built()
    counter = Counter()

    def count(*_: Any) -> None:
        counter.number += 1

    model.register_forward_hook(count)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)


def hidden_state(run: Run) -> None:
    cell = nn.GRUCell(4, 4)
    optimizer, hidden = SGD(cell.parameters(), 0.1), torch.zeros(2, 4)
    for x, _ in run({"cell": cell, "optimizer": optimizer}):
        hidden = cell(x, hidden.detach())
        hidden.square().mean().backward()
        optimizer.step()


FORGETFUL = {
    model_average: ["ema"],
    dict_average: ["shadow"],
    object_average: ["helpers.all.0.parts"],
    torch_average: ["swa"],
    critic_without_moments: ["critic"],
    critic_of_a_pair: ["pair.critic"],
    teacher_in_training: ["teacher"],
    buffer_of_a_loss: ["criterion"],
    attributes_of_a_module: ["model.queue", "model.place"],
    parameter_of_an_optimizer: ["weight"],
    scaler_left_out: ["scaler"],
    generator_in_a_closure: ["mix"],
    array_of_an_object: ["norm.mean"],
    object_with_a_state: ["ema"],
    counter_of_a_closure: ["number"],
    counters_of_a_helper: ["calls, passes"],
    counter_of_a_hook: ["counter.number"],
    hidden_state: ["hidden"],
}


def model_average_kept(run: Run) -> None:
    model, optimizer = built()
    ema = copy.deepcopy(model)
    for x, y in run({"model": model, "optimizer": optimizer, "ema": ema}):
        train(model, optimizer, x, y)
        average(ema.parameters(), model)


def dict_average_kept(run: Run) -> None:
    model, optimizer = built()
    shadow = {name: each.detach().clone() for name, each in model.named_parameters()}
    for x, y in run({"model": model, "optimizer": optimizer, "shadow": shadow}):
        train(model, optimizer, x, y)
        average(shadow.values(), model)


def object_average_kept(run: Run) -> None:
    model, optimizer = built()
    ema = SavedAverage(model)
    for x, y in run({"model": model, "optimizer": optimizer, "ema": ema}):
        train(model, optimizer, x, y)
        average(ema.parts, model)


def pair_kept_in_parts(run: Run) -> None:
    pair = Pair()
    optimizer, second = AdamW(pair.net.parameters()), SGD(pair.critic.parameters(), 0.1)
    for x, y in run({"net": pair.net, "critic": pair.critic, "optimizer": optimizer, "second": second}):
        adversarial(pair.net, pair.critic, second, x)
        train(pair.net, optimizer, x, y)


def wrappers(run: Run) -> None:
    model, optimizer = built()
    compiled = torch.compile(nn.parallel.DistributedDataParallel(model), backend="eager")
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(compiled, optimizer, x, y)


def teacher_in_evaluation(run: Run) -> None:
    model, optimizer = built()
    teacher, noise, off = copy.deepcopy(model).eval(), nn.Dropout(0.1), torch.amp.GradScaler("cpu", enabled=False)
    for x, _ in run({"model": model, "optimizer": optimizer}):
        off.scale(train(model, optimizer, noise(x), teacher(x).detach()))
        off.update()


def features(run: Run) -> None:
    model = Features()
    optimizer = SGD(model.parameters(), 0.1)
    for x, y in run({"model": model, "optimizer": optimizer}):
        train(model, optimizer, x, y)


def sums_of_an_epoch(run: Run) -> None:
    model, optimizer = built()
    best = {"loss": math.inf}
    loop = run({"model": model, "optimizer": optimizer, "best": best})
    for epoch in loop.epochs():
        matrix, recent = torch.zeros(2, 2), deque[float](maxlen=3)
        for x, y in epoch:
            recent.append(train(model, optimizer, x, y).item())
            matrix[0, 0] += (model(x) > 0).sum()
        best["loss"] = min(best["loss"], *recent)


def sharpness_aware(run: Run) -> None:
    model, optimizer = built()
    for x, y in run({"model": model, "optimizer": optimizer}):
        old = [each.detach().clone() for each in model.parameters()]
        train(model, optimizer, x, y)
        with torch.no_grad():
            for parameter, before in zip(model.parameters(), old, strict=True):
                parameter.lerp_(before, 0.5)


def closure_of_an_optimizer(run: Run) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    for x, y in run({"model": model, "optimizer": optimizer}):
        optimizer.step(functools.partial(closure, x, y))


CORRECT = [
    model_average_kept,
    dict_average_kept,
    object_average_kept,
    pair_kept_in_parts,
    wrappers,
    teacher_in_evaluation,
    features,
    sums_of_an_epoch,
    sharpness_aware,
    closure_of_an_optimizer,
]


@pytest.fixture
def named(job: JobHandle, tmp_path: Path) -> Callable[..., list[str]]:
    def named(program: Callable[[Run], None], **options: Any) -> list[str]:
        data = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), 2)
        program(lambda state: job.loop(data, state, epochs=2, every_steps=2, **options))
        found = [event for event in read_events(RunDir(tmp_path / "alone")) if event["event"] == "forgotten"]
        assert all(str(event["where"]).startswith("test_census.py:") and event["kind"] for event in found)
        return [str(event["name"]) for event in found]

    return named


@pytest.mark.parametrize("program", FORGETFUL, ids=lambda program: program.__name__)
def test_changing_part_outside_the_state_is_named(named: Callable[..., list[str]], program: Any) -> None:
    assert sorted(named(program)) == sorted(FORGETFUL[program])


@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.__name__)
def test_census_is_silent_on_a_correct_program(named: Callable[..., list[str]], program: Any) -> None:
    assert named(program) == []


def test_module_beside_the_program_is_searched(
    named: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = ModuleType("helper")
    helper.__file__ = "helper.py"
    monkeypatch.setitem(sys.modules, "helper", helper)

    def program(run: Run) -> None:
        model, optimizer = built()
        beside, helper.holder = helper, SimpleNamespace(ema=copy.deepcopy(model))  # type: ignore[attr-defined]
        for x, y in run({"model": model, "optimizer": optimizer}):
            train(model, optimizer, x, y)
            average(beside.holder.ema.parameters(), model)

    assert named(program) == ["helper.holder.ema"]


def test_forget_silences_the_census(named: Callable[..., list[str]]) -> None:
    assert named(attributes_of_a_module, forget=["model.queue"]) == ["model.place"]
    assert named(counters_of_a_helper, forget=["calls", "passes"], name="second") == ["model.place"]
