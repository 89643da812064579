"""Where the generators of a user's object are found."""

from __future__ import annotations

import gc
import random
import threading
from collections import deque, namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
import torch

from clusterdp.checkpoint.state import generators
from clusterdp.checkpoint.state.generators import generators_of

DRAWS, NUMBERS = random.Random(7), numpy.random.default_rng(7)
Pair = namedtuple("Pair", "name draws")


class Settings:
    draws = random.Random(9)


class Slotted:
    __slots__ = ("draws", "empty")

    def __init__(self) -> None:
        self.draws = random.Random(8)


AUGMENT = Slotted()


class Shared:
    draws = DRAWS


class Lazy:
    @property
    def draws(self) -> Any:
        return DRAWS


class Static:
    @staticmethod
    def draw() -> float:
        return DRAWS.random()


class Others:
    draws = random.Random(11)


class OfGlobals:
    def __getitem__(self, index: int) -> float:
        return index + noise() + Settings.draws.random() + Others.draws.random()


def noise() -> float:
    return sum(NUMBERS.normal() for _ in range(2))


def of_a_module(samples: Any) -> float:
    return random.choice(samples) + numpy.random.rand() + DRAWS.random()  # the global streams are kept by others


def of_an_object(samples: Any) -> Any:
    return AUGMENT.draws.choice(samples)


FOUND: dict[str, tuple[Any, list[Any]]] = {
    "a slot": (AUGMENT, [AUGMENT.draws]),
    "an attribute of its class": (Shared(), [DRAWS]),
    "a property": (Lazy(), [DRAWS]),
    "a static method": (Static(), [DRAWS]),
    "functions that its method calls": (OfGlobals(), [NUMBERS, Settings.draws, Others.draws]),
    "a named tuple": ([Pair("noise", DRAWS)], [DRAWS]),
    "a deque": ({"last": deque([DRAWS])}, [DRAWS]),
    "an object of its module": (of_an_object, [AUGMENT.draws]),
    "modules": (of_a_module, [DRAWS]),
}


@pytest.mark.parametrize("where", FOUND)
def test_generators_are_found_in(where: str) -> None:
    holder, expected = FOUND[where]
    assert set(map(id, generators_of(holder).values())) == set(map(id, expected))


def test_generator_of_an_object_hides_the_generator_of_its_class() -> None:
    class Own(Shared):
        draws = random.Random(10)

    assert generators_of(Own()) == {"draws": Own.draws}
    own = Own()
    own.draws = random.Random(12)
    assert generators_of(own) == {"draws": own.draws}


def test_living_disturbs_no_thread_filling_a_tuple() -> None:
    errors, is_over = list[SystemError](), threading.Event()

    def fill() -> None:
        while not is_over.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:
                errors.append(error)

    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(fill)
        for _ in range(40):
            generators.living(torch.optim.Optimizer)
        is_over.set()
        filling.result(10)
    assert errors == []


def test_living_finds_optimizers_of_before_a_freeze() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    generators.note_before_freeze()
    gc.freeze()
    assert any(each is optimizer for each in generators.living(torch.optim.Optimizer))
    assert not any(each is optimizer for each in gc.get_objects())
