"""A loader's own random numbers: apart from the training's, and the same whenever they follow from the same ones."""

from __future__ import annotations

import random

import numpy
import torch

from clusterdp.train.data.loader_rng import OwnStreams


def draw() -> list[float]:
    return [float(torch.rand(())), random.random(), float(numpy.random.rand())]


def test_what_the_training_draws_and_what_the_loader_draws_do_not_disturb_each_other() -> None:
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    alone = [draw() for _ in range(4)]
    for training_between in (0, 2):
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)
        streams = OwnStreams()
        streams.begin()
        loader, training = [], []
        for _ in range(2):
            with streams:
                loader.append(draw())
            training += [draw() for _ in range(training_between)]
        assert training == alone[: 2 * training_between]
        if training_between == 0:
            first = loader
    assert loader == first
    assert not set(map(tuple, loader)) & set(map(tuple, alone))


def test_what_fails_within_leaves_the_trainings_numbers_as_they_were() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    streams = OwnStreams()
    streams.begin()
    try:
        with streams:
            draw()
            raise KeyError
    except KeyError:
        pass
    assert torch.equal(before, torch.get_rng_state())
