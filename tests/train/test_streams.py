"""The global random streams, put aside and put back, spare normal numbers included: by memory, and by get and set."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy
import pytest
import torch

from clusterdp.checkpoint.state import rng
from clusterdp.train.data import streams
from clusterdp.train.data.streams import OwnStreams, scratch_streams, seed_streams


@pytest.fixture(params=["memory", "get and set"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As with a numpy before 1.24, and without CPython, too."""
    assert streams._can_switch()
    assert streams._twister()
    monkeypatch.setattr(streams, "_scratch", [])
    if request.param == "get and set":
        monkeypatch.setattr(streams, "_can_switch", lambda: False)
        monkeypatch.setattr(streams, "_twister", lambda: None)
    return str(request.param)


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def draw() -> list[float]:
    """The last two leave a spare number behind, which is state, too."""
    uniform = [float(torch.rand(())), random.random(), float(numpy.random.rand())]
    return [*uniform, random.gauss(0, 1), float(numpy.random.randn())]


def own() -> OwnStreams:
    made = OwnStreams()
    made.begin()
    return made


def test_random_streams_of_training_and_loader_are_separate() -> None:
    seed(1)
    alone = [draw() for _ in range(4)]
    for training_between in (0, 2):
        seed(1)
        apart = own()
        loader, training = [], []
        for _ in range(2):
            with apart:
                loader.append(draw())
            training += [draw() for _ in range(training_between)]
        assert training == alone[: 2 * training_between]
        if training_between == 0:
            first = loader
    assert loader == first
    assert not set(map(tuple, loader)) & set(map(tuple, alone))


def test_both_implementations_of_random_stream_switching_draw_equal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[list[float]]:
        seed(1)
        apart, found = own(), []
        for _ in range(3):
            with apart:
                found.append(draw())
            found.append(draw())
        return found

    here = drawn()
    monkeypatch.setattr(streams, "_can_switch", lambda: False)
    monkeypatch.setattr(streams, "_twister", lambda: None)
    assert here == drawn()


@pytest.mark.parametrize("aside", [own, scratch_streams, rng.kept], ids=["own", "scratch", "kept"])
def test_global_random_streams_are_restored_after_use_and_after_an_exception(
    aside: Callable[[], AbstractContextManager[None]],
) -> None:
    seed(1)
    draw()
    expected = [draw() for _ in range(2)]
    seed(1)
    draw()
    with aside():
        seed_streams(5)
        draw()
    found = [draw()]
    with pytest.raises(KeyError), aside():
        raise KeyError(draw())
    assert [*found, draw()] == expected


def test_outer_scratch_streams_continue_unchanged_after_a_nested_block() -> None:
    with scratch_streams():
        seed_streams(7)
        expected = [draw(), draw()]
    with scratch_streams():
        seed_streams(7)
        found = [draw()]
        with scratch_streams():
            seed_streams(8)
            assert draw() not in expected
        assert [*found, draw()] == expected


def test_numpy_bit_generator_of_the_user_is_restored_after_scratch_streams(way: str) -> None:
    if way != "memory":
        pytest.skip("numpy before 1.24 has no set_bit_generator()")
    before = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    theirs = numpy.random.PCG64(1)
    numpy.random.set_bit_generator(theirs)  # type: ignore[attr-defined]
    try:
        with scratch_streams():
            seed_streams(5)
            draw()
        assert numpy.random.get_state(legacy=False)["bit_generator"] == "PCG64"
    finally:
        numpy.random.set_bit_generator(before)  # type: ignore[attr-defined]
