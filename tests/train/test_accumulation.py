"""Accumulation: k batches of b are one of k x b, the last window too, and only its last batch is sent to the others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.train.optim.accumulation import windows
from tests.train import techniques
from tests.train.ranks import running
from tests.train.test_strategy import close


def test_last_accumulation_window_holds_only_the_remaining_batches() -> None:
    sizes = [(*window,) for _, window in windows(range(5), 2)]
    assert sizes == [(2, False), (2, True), (2, False), (2, True), (1, True)]
    assert [window.ends for _, window in windows(range(2), 1)] == [True, True]
    with pytest.raises(ConfigError, match="accumulate: 0"):
        next(windows(range(2), 0))


@pytest.mark.parametrize("accumulate", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gradients_are_all_reduced_once_per_accumulation_window(tmp_path: Path, accumulate: int) -> None:
    with running(tmp_path, techniques.all_reduces, accumulate, size=2) as ranks:
        (buckets, sent), other = ranks.answers
    assert other == [buckets, sent]
    assert buckets > 1
    assert sent == buckets * 4 // accumulate


@pytest.mark.parametrize(
    "strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow), pytest.param("hsdp", marks=pytest.mark.slow)]
)
def test_accumulated_batches_give_the_weights_of_one_large_batch(tmp_path: Path, strategy: str) -> None:
    """The last window has half as many batches, and so has the one of the process that it is compared with."""
    with running(tmp_path, techniques.accumulated, strategy, 4, size=2) as ranks:
        answers = ranks.answers
    model = techniques.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for i, (x, y) in enumerate(techniques.batches()):
        if i == techniques.STEPS - 1:  # of each rank's share, the first two pieces of four
            x, y = (torch.cat([part[:4], part[8:12]]) for part in (x, y))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    assert answers[0] == answers[1]
    assert close(answers[0], techniques.weights(model))
