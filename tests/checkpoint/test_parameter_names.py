"""An optimizer's state follows the names of its parameters, in whatever order the next attempt counts them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from clusterdp.checkpoint import Checkpointer, StateError
from clusterdp.checkpoint.state.parameter_names import check_held
from tests.checkpoint.gang import on_ranks

STRAIGHT, CROSSED = ("a", "b", "c"), ("c", "a", "b")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Parameter(torch.rand(4, 4)), nn.Parameter(torch.rand(4, 4))
        self.c = nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x @ self.a).relu() @ self.b).sum() + (self.c**2).sum()


def built(*orders: Sequence[str], kind: Any = torch.optim.Adam, net: nn.Module | None = None) -> tuple[nn.Module, Any]:
    net = net or Net()
    named = dict(net.named_parameters())
    return net, kind([{"params": [named[key] for key in order]} for order in orders], lr=0.1)


def train(net: nn.Module, optimizer: Any, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((2, 4), 1.0 + step)).backward()
        optimizer.step()


def saved(folder: Path, *orders: Sequence[str], **build: Any) -> tuple[nn.Module, Any]:
    net, optimizer = built(*orders, **build)
    train(net, optimizer, 3)
    Checkpointer(folder, {"net": net, "optimizer": optimizer}).save(3)
    return net, optimizer


def test_optimizer_moments_follow_parameter_names_into_a_different_order(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, optimizer = saved(tmp_path, STRAIGHT)
    other, again = built(CROSSED)
    with caplog.at_level(logging.WARNING):
        Checkpointer(tmp_path, {"net": other, "optimizer": again}).restore()
    train(net, optimizer, 2)
    train(other, again, 2)
    for key, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[key]), key
    assert "another order" in caplog.text
    assert "net/c was net/a" in caplog.text


def test_restore_logs_no_warning_if_the_parameter_order_is_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, CROSSED)
    net, optimizer = built(CROSSED)
    with caplog.at_level(logging.WARNING):
        restored = Checkpointer(tmp_path, {"net": net, "optimizer": optimizer}).restore()
    assert restored is not None
    assert restored.exact
    assert not caplog.records


def test_parameter_moved_to_a_different_group_is_refused_with_its_name(tmp_path: Path) -> None:
    saved(tmp_path, ["a"], ["b", "c"])
    net, optimizer = built(["b"], ["a", "c"])
    with pytest.raises(StateError, match=r"optimizer: its group 0 has other parameters .* net/a, net/b\. Make"):
        Checkpointer(tmp_path, {"net": net, "optimizer": optimizer}).restore()


def test_lbfgs_with_a_different_parameter_order_is_refused(tmp_path: Path) -> None:
    net, optimizer = built(STRAIGHT, kind=torch.optim.LBFGS)
    optimizer.step(lambda: (optimizer.zero_grad(), loss := net(torch.ones(2, 4)), loss.backward())[1])
    Checkpointer(tmp_path, {"net": net, "optimizer": optimizer}).save(1)
    other, again = built(CROSSED, kind=torch.optim.LBFGS)
    with pytest.raises(StateError, match=r"another order than when this was saved: net/c was net/a"):
        Checkpointer(tmp_path, {"net": other, "optimizer": again}).restore()


class Foreign:
    """An optimizer of another library, with a state of its own form."""

    def __init__(self, groups: list[dict[str, Any]], lr: float) -> None:
        self.param_groups = groups

    def state_dict(self) -> dict[str, Any]:
        return {"moments": [torch.zeros(parameter.shape) for parameter in self.param_groups[0]["params"]]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_third_party_optimizer_with_a_different_parameter_order_is_refused(tmp_path: Path) -> None:
    net, optimizer = built(STRAIGHT, kind=Foreign)
    Checkpointer(tmp_path, {"net": net, "optimizer": optimizer}).save(1)
    other, again = built(CROSSED, kind=Foreign)
    with pytest.raises(StateError, match=r"another order than when this was saved: net/c was net/a"):
        Checkpointer(tmp_path, {"net": other, "optimizer": again}).restore()


def test_checkpoint_without_parameter_names_is_restored_by_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("clusterdp.checkpoint.state.parameter_names.recorded", lambda state: {})
        net, optimizer = saved(tmp_path, STRAIGHT)
    other, again = built(STRAIGHT)
    Checkpointer(tmp_path, {"net": other, "optimizer": again}).restore()
    assert torch.equal(again.state[other.c]["exp_avg"], optimizer.state[net.c]["exp_avg"])


def test_renamed_parameter_keeps_its_optimizer_state_by_position(tmp_path: Path) -> None:
    net, optimizer = saved(tmp_path, STRAIGHT)
    other, again = built(STRAIGHT)
    other.register_load_state_dict_pre_hook(lambda module, state, prefix, *_: state.update(d=state.pop("c")))
    other.d = other.c
    del other.c
    Checkpointer(tmp_path, {"net": other, "optimizer": again}).restore()
    assert torch.equal(again.state[other.d]["exp_avg"], optimizer.state[net.c]["exp_avg"])


def in_orders_of_their_own(rank: int, size: int, folder: str) -> str:
    net, optimizer = built(CROSSED if rank else STRAIGHT)
    with pytest.raises(StateError) as caught:
        Checkpointer(folder, {"net": net, "optimizer": optimizer}).save(1)
    return str(caught.value)


def test_save_fails_if_ranks_have_different_parameter_orders(tmp_path: Path) -> None:
    for said in on_ranks(2, in_orders_of_their_own, str(tmp_path)):
        assert "optimizer/names/0/0: its parameters come in another order here than on rank 0" in said


def sharded(rank: int, size: int, folder: str) -> None:
    from torch.distributed.fsdp import fully_shard

    straight, optimizer = built(STRAIGHT, net=fully_shard(Net()))  # type: ignore[arg-type]
    train(straight, optimizer, 3)
    Checkpointer(folder, {"net": straight, "optimizer": optimizer}).save(3)
    crossed, again = built(CROSSED, net=fully_shard(Net()))  # type: ignore[arg-type]
    Checkpointer(folder, {"net": crossed, "optimizer": again}).restore()
    for _ in range(2):
        train(straight, optimizer, 1)
        train(crossed, again, 1)
    for key, value in straight.state_dict().items():
        assert torch.equal(value.full_tensor(), crossed.state_dict()[key].full_tensor()), key


def test_sharded_optimizer_moments_follow_parameter_names_into_a_different_order(tmp_path: Path) -> None:
    on_ranks(2, sharded, str(tmp_path))


def test_optimizer_of_a_different_model_is_refused() -> None:
    net, _ = built(STRAIGHT)
    _, foreign = built(STRAIGHT)
    with pytest.raises(StateError, match=r"sgd: none of its 3 parameters belongs to net, so it would not train that\."):
        check_held({"net": net, "sgd": foreign})


def test_optimizer_of_parameter_copies_or_beside_a_frozen_model_is_accepted() -> None:
    net, _ = built(STRAIGHT)
    net_again, own = built(STRAIGHT)
    copies = torch.optim.SGD([parameter.detach().double() for parameter in net.parameters()])
    views = torch.optim.SGD([parameter.detach().view(-1) for parameter in net.parameters()])
    temperature = torch.optim.SGD([nn.Parameter(torch.zeros(()))])
    for state in (
        {"net": net, "copies": copies},
        {"net": net, "views": views},
        {"net": net_again, "own": own, "temperature": temperature},
        {"net": Net().requires_grad_(False), "temperature": temperature},
    ):
        check_held(state)
