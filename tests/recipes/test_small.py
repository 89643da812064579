"""Recipes that are small enough to be run whole: linear regression, products, the language model on a little text."""

from __future__ import annotations

import pytest
import torch

from clusterdp.recipes import characters, first, linear, products
from clusterdp.recipes.data.bundled import diabetes
from clusterdp.train import JobHandle


def test_the_one_to_begin_with_learns(job: JobHandle) -> None:
    torch.manual_seed(0)
    assert first.main(job, epochs=4) < 0.4, "untrained, it is off by 0.6"


def test_the_regression_comes_to_least_squares(job: JobHandle) -> None:
    assert 0 <= linear.main(job, epochs=20) < 0.01


def test_least_squares_is_the_least() -> None:
    features, target = diabetes()
    net = torch.nn.Linear(10, 1)
    solved = torch.linalg.lstsq(features, target[:, None]).solution  # both are centred
    with torch.no_grad():
        net.weight.copy_(solved.T)
        net.bias.zero_()
    best = linear.least_squares(features, target)
    assert best == pytest.approx(linear.squared_error(net, features, target), rel=1e-4)
    assert best == pytest.approx(0.4812, abs=1e-4), "configs/linear.yaml says so"


def test_products_are_right_and_all_are_in_the_table(job: JobHandle, capsys: pytest.CaptureFixture[str]) -> None:
    assert products.main(job, rounds=2, least_s=0.0) < 1e-5
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("clusterdp: ")]
    works = ["product 64", "product 256", "product 1,024", "regression"]
    assert [line[:16].strip() for line in lines[1:5]] == works


def test_its_regression_is_one() -> None:
    features, target = diabetes()
    descend, _ = products.regression("cpu")
    left = (features @ descend() - target).square().mean()
    assert float(left) < 1.01 * linear.least_squares(features, target)


def test_the_best_round_counts_also_after_a_resume() -> None:
    table, resumed = products.Table(), products.Table()
    table.add("product 64/cpu", 2e-6, flops=4000.0)
    resumed.load_state_dict(table.state_dict())
    resumed.add("product 64/cpu", 3e-6, flops=4000.0)
    assert resumed.rows == {"product 64/cpu": (2e-6, pytest.approx(2.0))}


def test_the_language_model_learns_from_a_little_text(job: JobHandle, capsys: pytest.CaptureFixture[str]) -> None:
    loss = characters.main(job, most=20_000, length=32, epochs=1, batch_size=16, write=30)
    assert loss < 3.1, "the frequencies of its characters alone come to 3.16"
    assert "It writes:" in capsys.readouterr().out


def test_it_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    net = characters.Writer(alphabet=5, length=8).eval()
    codes = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    other = codes.clone()
    other[0, 5:] = 4
    with torch.no_grad():
        first, second = net(codes), net(other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.equal(first[:, 5], second[:, 5])


def test_it_writes_the_same_from_the_same_start_and_draws_from_nobody_elses_numbers() -> None:
    net = characters.Writer(alphabet=5, length=8)
    before = torch.get_rng_state()
    assert net.write([0, 1], 12) == net.write([0, 1], 12)
    assert torch.equal(before, torch.get_rng_state())
