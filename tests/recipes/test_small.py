"""Recipes that are small enough to be run whole: linear regression, products, the language model on a little text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clusterdp.errors import ConfigError
from clusterdp.recipes import first
from clusterdp.recipes.bundled import diabetes
from clusterdp.train import JobHandle
from configs import characters, linear, pipeline, products


def test_first_recipe_learns_a_sine_within_four_epochs(job: JobHandle) -> None:
    torch.manual_seed(0)
    assert first.main(job, epochs=4) < 0.4, "untrained, it is off by 0.6"


def test_pipeline_recipe_refuses_unequal_microbatches() -> None:
    job: Any = SimpleNamespace(world_size=2)
    with pytest.raises(ConfigError, match=r"params\.batch_size: 30 cannot be cut into 4 equal microbatches"):
        pipeline.main(job, batch_size=30)


def test_linear_recipe_reaches_the_least_squares_error(job: JobHandle) -> None:
    assert 0 <= linear.main(job, epochs=20) < 0.01


def test_least_squares_returns_the_minimal_squared_error() -> None:
    features, target = diabetes()
    net = torch.nn.Linear(10, 1)
    solved = torch.linalg.lstsq(features, target[:, None]).solution  # both are centred
    with torch.no_grad():
        net.weight.copy_(solved.T)
        net.bias.zero_()
    best = linear.least_squares(features, target)
    assert best == pytest.approx(linear.squared_error(net, features, target), rel=1e-4)
    assert best == pytest.approx(0.4812, abs=1e-4), "configs/linear.yaml says so"


def test_products_recipe_multiplies_accurately_and_prints_every_product(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    assert products.main(job, rounds=2, least_s=0.0) < 1e-5
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("clusterdp: ")]
    works = ["product 64", "product 256", "product 1,024", "regression"]
    assert [line[:16].strip() for line in lines[1:5]] == works


def test_products_regression_reaches_the_least_squares_error() -> None:
    features, target = diabetes()
    descend, _ = products.regression("cpu")
    left = (features @ descend() - target).square().mean()
    assert float(left) < 1.01 * linear.least_squares(features, target)


def test_products_table_keeps_the_fastest_round_after_a_resume() -> None:
    table, resumed = products.Table(), products.Table()
    table.add("product 64/cpu", 2e-6, flops=4000.0)
    resumed.load_state_dict(table.state_dict())
    resumed.add("product 64/cpu", 3e-6, flops=4000.0)
    assert resumed.rows == {"product 64/cpu": (2e-6, pytest.approx(2.0))}  # type: ignore[comparison-overlap]


def test_characters_recipe_learns_from_a_short_text_and_prints_a_sample(
    job: JobHandle, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = characters.main(job, most=20_000, length=32, epochs=1, batch_size=16, write=30)
    assert loss < 3.1, "the frequencies of its characters alone come to 3.16"
    assert "It writes:" in capsys.readouterr().out


def test_characters_model_ignores_later_characters() -> None:
    torch.manual_seed(0)
    net = characters.Writer(alphabet=5, length=8).eval()
    codes = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    other = codes.clone()
    other[0, 5:] = 4
    with torch.no_grad():
        first, second = net(codes), net(other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.equal(first[:, 5], second[:, 5])


def test_generated_text_is_reproducible_and_leaves_torchs_random_state_unchanged() -> None:
    net = characters.Writer(alphabet=5, length=8)
    before = torch.get_rng_state()
    assert net.write([0, 1], 12) == net.write([0, 1], 12)
    assert torch.equal(before, torch.get_rng_state())
