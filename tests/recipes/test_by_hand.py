"""By hand and through a parameter server, the training is DDP's. If not, the recipes teach something else."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recipes import equality
from tests.train.ranks import running

STEPS = 12
GLOBAL_BATCH = 32


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """By the number of ranks: what each of them came to."""
    folder = tmp_path_factory.mktemp("equality")

    @cache
    def of(size: int) -> list[dict[str, list[float]]]:
        with running(Path(folder, str(size)), equality.train, STEPS, GLOBAL_BATCH, size=size) as ranks:
            return ranks.answers

    return of


@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_handwritten_gradient_averaging_equals_ddp_bit_for_bit(trained: Any, size: int) -> None:
    answer = trained(size)[0]
    assert answer["by_hand"] == answer["ddp"]


@pytest.mark.parametrize("size", [1, 2])
def test_parameter_server_on_one_or_two_ranks_equals_ddp_bit_for_bit(trained: Any, size: int) -> None:
    answer = trained(size)[0]
    assert answer["server"] == answer["ddp"]


def test_parameter_server_on_four_ranks_equals_ddp_up_to_summation_order(trained: Any) -> None:
    """It adds up in the order of the ranks, gloo's ring begins elsewhere in each part of the buffer. A sum of four may
    then differ in the last bit, 6e-8 of it. Of the weights, which twelve steps change by little, that was 4e-9.
    """
    answer = trained(4)[0]
    server, ddp = torch.tensor(answer["server"]), torch.tensor(answer["ddp"])
    assert float((server - ddp).norm() / ddp.norm()) < 1e-7


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("way", ["ddp", "by_hand", "server"])
def test_all_ranks_end_with_the_same_weights(trained: Any, size: int, way: str) -> None:
    assert [answer[f"{way} spread"] for answer in trained(size)] == [[0.0]] * size


@pytest.mark.parametrize("way", ["ddp", "by_hand", "server"])
def test_weights_do_not_depend_on_rank_count_at_equal_global_batch(trained: Any, way: str) -> None:
    """Up to rounding: one mean over 32 samples, or the mean of four means over 8."""
    alone = torch.tensor(trained(1)[0][way])
    for size in (2, 4):
        together = torch.tensor(trained(size)[0][way])
        assert float((together - alone).norm() / alone.norm()) < 1e-7
