"""What the loop says about objects outside its state, for programs in one process without a run."""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import numpy
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import DataLoader

from clusterdp.checkpoint.state import generators
from clusterdp.checkpoint.state.generators import generators_of, states_of
from clusterdp.train.loop import census
from clusterdp.train.loop.forgotten import MOST_LINES, Forgotten


class Record:
    def __init__(self) -> None:
        self.names: list[str] = []
        self.step = 0

    def event(self, _: str, what: str, **more: Any) -> None:
        self.names.append(what.partition(" is used")[0].partition(" (")[0].partition(" with each")[0])


def names(
    state: dict[str, Any], use: Callable[[], Any] = lambda: None, *, loader: Any = None, **variables: Any
) -> list[str]:
    """Returns what is named in a program that has these global variables and saves at two steps, twice at each."""
    record: Any = Record()
    program = {"begin": Forgotten, "state": state, "loader": loader, "record": record, **variables}
    exec("__found = begin(state, loader)", program)
    for _ in range(2):
        use()
        record.step += 1
        exec("__found.look(record); __found.look(record)", program)
    return record.names


class Training:
    """A model, and what trains it."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = StepLR(self.optimizer, 1)
        self.rng = numpy.random.default_rng(0)

    def step(self) -> None:
        self.model(torch.ones(1, 2) * self.rng.random()).sum().backward()
        self.optimizer.step()
        self.scheduler.step()

    def saved(self) -> dict[str, Any]:
        return {"o": self.optimizer.state_dict(), "s": self.scheduler.state_dict(), "r": json.dumps(self.rng.random())}


@dataclass
class InSlots:
    __slots__ = ("parts",)
    parts: deque[Any]

    def state_dict(self) -> dict[str, Any]:
        return {"number": len(self.parts)}


class Functions:
    def __init__(self, state_dict: Callable[[], dict[str, Any]]):
        self.state_dict = state_dict


class Drops(nn.Module):
    def __init__(self, rng: Any):
        super().__init__()
        self.rng = rng

    def get_extra_state(self) -> Any:
        return self.rng.bit_generator.state


def named_globally() -> dict[str, Any]:
    return here.saved()


here = Training()


@pytest.fixture(autouse=True)
def a_new_one() -> None:
    """Because the tests freeze older objects, which the garbage collector then no longer lists."""
    global here
    here = Training()


def by_functions(training: Training) -> Any:
    return Functions(training.saved)


def by_methods(training: Training) -> Any:
    return [Functions(training.optimizer.state_dict), training.scheduler, training.rng]


def by_slots(training: Training) -> Any:
    return InSlots(deque([training.optimizer, training.scheduler, training.rng]))


def by_globals(training: Training) -> Any:
    return Functions(named_globally)


def by_extra_state(training: Training) -> Any:
    return [nn.Sequential(nn.ReLU(), Drops(training.rng)), training.optimizer, training.scheduler]


@pytest.mark.parametrize("kept", [by_functions, by_methods, by_slots, by_globals, by_extra_state])
def test_object_kept_by_its_owner_is_not_named(kept: Callable[[Training], Any]) -> None:
    assert names({"model": here.model, "kept": kept(here)}, here.step, rng=here.rng) == []


def test_objects_outside_the_state_are_named() -> None:
    found = names({"model": here.model}, here.step, rng=here.rng)
    assert found == ["the Adam of model/weight, model/bias", "the StepLR of model/weight, model/bias", "rng"]


def test_optimizer_built_in_each_step_is_not_named() -> None:
    kept = list[Any]()

    def use() -> None:
        kept[:] = [Training()]
        kept[0].step()

    assert names({}, use) == []


def test_optimizer_built_after_the_begin_is_named_at_the_second_look() -> None:
    kept = list[Any]()

    def use() -> None:
        kept.append(kept[0] if kept else Training())
        kept[0].step()

    assert names({}, use) == ["the Adam"]


def test_generator_seeded_in_each_step_is_not_named() -> None:
    noise = torch.Generator()
    assert names({}, lambda: torch.rand(1, generator=noise.manual_seed(time.monotonic_ns())), noise=noise) == []


def test_many_generators_print_few_lines() -> None:
    many = [random.Random(number) for number in range(40)]
    assert len(names({}, lambda: [each.random() for each in many], many=many)) == MOST_LINES


@pytest.mark.parametrize("what", ["state_dict", "loaded", "weights"])
def test_tensors_shared_with_model_or_optimizer_are_named(what: str) -> None:
    best: dict[str, Any] = {}
    state = {"net": here.model, "optimizer": here.optimizer, "scheduler": here.scheduler, "best": best}

    def use() -> None:
        here.step()
        if not best:
            best["kept"] = (here.model if what == "weights" else here.optimizer).state_dict()
            if what == "loaded":
                best["kept"] = copy.deepcopy(best["kept"])
                here.optimizer.load_state_dict(best["kept"])

    assert names(state, use) == [
        "best/kept in the state of the loop has tensors of a model or an optimizer, which change"
    ]


def test_copies_and_tensors_shared_from_the_begin_are_not_named() -> None:
    best = {"first": here.model.weight}
    state = {"net": here.model, "optimizer": here.optimizer, "scheduler": here.scheduler, "best": best}

    def use() -> None:
        here.step()
        best["copy"] = copy.deepcopy(here.optimizer.state_dict())
        here.optimizer.load_state_dict(copy.deepcopy(best["copy"]))

    assert names(state, use) == []


class Both:
    """Reads two loaders, as a loop's loader."""

    def __init__(self) -> None:
        self.labelled, self.unlabelled = DataLoader(range(9)), DataLoader(range(9))  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return zip(self.labelled, self.unlabelled, strict=True)


class Anew:
    """Makes its DataLoader in each epoch."""

    def __init__(self) -> None:
        self.data = range(9)

    def __iter__(self) -> Iterator[Any]:
        yield from DataLoader(self.data)  # type: ignore[arg-type]


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


@pytest.mark.parametrize("begin", [iter, forever, enumerate, lambda loader: zip(loader, loader, strict=True)])
def test_second_loader_read_by_next_is_named(begin: Callable[[Any], Iterator[Any]]) -> None:
    batches = begin(DataLoader(range(9)))  # type: ignore[arg-type]
    assert {*names({}, lambda: next(batches), loader=Both())} == {"a second DataLoader, of a range,"}


def test_loaders_of_the_loop_or_the_state_are_not_named() -> None:
    both, anew, kept = Both(), Anew(), DataLoader(range(9))  # type: ignore[arg-type]
    batches = zip(both, anew, kept, strict=True)
    assert names({"kept": kept}, lambda: next(batches), loader=[both, anew]) == []


def test_loader_read_only_by_an_evaluation_is_not_named() -> None:
    record: Any = Record()
    found = Forgotten({}, None)
    for record.step in range(3):
        for _ in DataLoader(range(9)):  # type: ignore[arg-type]
            found.look(record)
    assert record.names == []


class RaisesDict:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


class NumberDict:
    __dict__ = property(lambda self: 3)  # type: ignore[assignment]


class RaisesAll:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class RaisesClass:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class RaisesModule(metaclass=Meta):
    pass


class NumberModule:
    __module__ = 3  # type: ignore[assignment]


class RaisesName:
    def __str__(self) -> str:
        raise RuntimeError


class Stateless(random.Random):
    def getstate(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    "make",
    [
        RaisesDict,
        NumberDict,
        RaisesAll,
        RaisesClass,
        RaisesModule,
        NumberModule,
        Stateless,
        lambda: {RaisesName(): [1]},
        *(
            lambda kind=kind: MagicMock(spec=kind)
            for kind in (random.Random, numpy.random.Generator, torch.Generator, nn.Module, DataLoader, LRScheduler)
        ),
    ],
)
def test_hostile_object_neither_fails_nor_hides_a_generator(make: Callable[[], Any]) -> None:
    rng = random.Random(1)
    thing = make()
    assert names({}, rng.random, things=[thing, {"rng": rng}]) == ["things.1.rng"]


@pytest.mark.parametrize("thing", [Stateless(), RaisesDict(), MagicMock(spec=random.Random)])
def test_loader_of_a_hostile_data_set_has_a_state(thing: Any) -> None:
    assert states_of(generators_of([thing])) == {}


def test_scheduler_without_hash_is_watched() -> None:
    class Plain(StepLR):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return self is other

    training = Training()
    training.scheduler = Plain(training.optimizer, 1)
    assert names({"o": training.optimizer, "model": training.model}, training.step) == [
        "the Plain of model/weight, model/bias"
    ]


def test_locals_of_the_program_stay_as_they_are() -> None:
    def train(lr: float) -> dict[str, Any]:
        config = locals()
        model = nn.Linear(1, 1)
        Forgotten({"model": model}, None)
        return config

    assert train(0.1) == {"lr": 0.1}


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals() are a view")
def test_variables_of_a_debugger_are_not_emptied() -> None:
    def train(lr: float) -> dict[str, Any]:
        held = sys._getframe().f_locals
        Forgotten({}, None)
        return dict(held)

    assert train(0.1)["lr"] == 0.1


def wide() -> Any:
    return [[[[] for _ in range(64)] for _ in range(64)] for _ in range(64)]


def many_methods() -> Any:
    kind = type("Kind", (), {f"method{number}": lambda self, number=number: number for number in range(2000)})
    return [[kind() for _ in range(60)] for _ in range(60)]


def many_generators() -> Any:
    return [[random.Random(number) for number in range(60)] for _ in range(60)]


@pytest.mark.parametrize("make", [wide, many_methods, many_generators])
def test_search_of_a_large_object_ends_within_its_time(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on by a hundredth of the limit at each look at an object, or at what one holds."""
    now, looks = [0.0], [0]
    held = generators.parts

    def look() -> None:
        now[0] += census.LONGEST_S / 100
        looks[0] += 1

    def parts(*thing: Any, **far: bool) -> Iterator[Any]:
        for part in held(*thing, **far):
            look()
            yield part

    monkeypatch.setattr(generators, "parts", parts)
    monkeypatch.setattr(census, "parts", parts)
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    exec("begin({}, None)", {"begin": Forgotten, "thing": make()})
    assert 0 < looks[0] < 5000
