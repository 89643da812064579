"""A restored tensor lies in memory as it did: kernels add in another order where it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.format import strides
from clusterdp.checkpoint.format.manifest import decode
from clusterdp.errors import DamagedError
from tests.checkpoint.training import Counter, digest


@pytest.mark.parametrize(
    ("tensor", "noted"),
    [
        (torch.zeros(2, 3), None),
        (torch.zeros(()), None),
        (torch.zeros(2, 0, 3).transpose(0, 2), None),
        (torch.zeros(4, 6)[:, ::2], None),
        (torch.zeros(2, 3).t(), (1, 3)),
        (torch.zeros(4, 6)[:, ::2].t(), (1, 3)),
        (torch.zeros(1, 3).expand(5, 3), (0, 1)),
        (torch.zeros(8, 1, 3, 3).to(memory_format=torch.channels_last), (9, 1, 3, 1)),
        (torch.zeros(8, 2, 3, 3).to(memory_format=torch.channels_last), (18, 1, 6, 2)),
    ],
    ids=lambda value: str(value.stride()) if isinstance(value, torch.Tensor) else "",
)
def test_strides_are_recorded_without_gaps_and_only_if_not_row_major(
    tensor: torch.Tensor, noted: tuple[int, ...] | None
) -> None:
    shape = tuple(tensor.shape)
    assert strides.noted(shape, tensor.stride()) == noted
    if noted is not None:
        assert strides.from_json({"x": list(noted)}, {"x": shape}) == {"x": noted}


@pytest.mark.parametrize("bad", [[1], [1, 1], [1, 4], [2, 4], [-1, 3], [1.0, 3], [True, 3], [1, 3, 1], "13", 5])
def test_invalid_strides_in_json_are_refused(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        strides.from_json({"x": bad}, {"x": (3, 2)})
    with pytest.raises(ValueError, match="of no tensor"):
        strides.from_json({"y": [1, 3]}, {"x": (3, 2)})


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(16, 8, 3)
        self.register_buffer("mask", torch.zeros(4, 6))
        self.register_buffer("scale", torch.zeros(1, 3).expand(5, 3))


def made(fill: float, memory_format: torch.memory_format = torch.channels_last) -> dict[str, Any]:
    torch.manual_seed(int(fill))
    model = Net().to(memory_format=memory_format)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "own": Counter(per_rank=True)}


def train(state: dict[str, Any]) -> None:
    model: Net = state["model"]
    model.conv(torch.randn(2, 16, 5, 5)).square().sum().backward()
    state["optimizer"].step()
    model.mask = torch.arange(24.0).view(6, 4).t()
    model.scale = torch.arange(3.0).expand(5, 3)
    state["own"].state = {"transposed": torch.arange(6).view(2, 3).t()}


def lies(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.stride()
    if isinstance(tree, dict):
        return {key: lies(value) for key, value in tree.items()}
    return [lies(item) for item in tree] if isinstance(tree, (list, tuple)) else tree


def everything(state: dict[str, Any]) -> dict[str, Any]:
    return {name: thing.state_dict() for name, thing in state.items()}


def test_restored_tensors_have_their_saved_memory_format(tmp_path: Path) -> None:
    first = made(1)
    train(first)
    Checkpointer(tmp_path, first).save(1)
    second = made(2)
    restored = Checkpointer(tmp_path, second).restore()
    assert restored is not None
    assert restored.differences == ()
    assert lies(everything(second)) == lies(everything(first))
    assert digest(everything(second)) == digest(everything(first))
    assert everything(first)["optimizer"]["state"][0]["exp_avg"].stride() == (144, 1, 48, 16)
    assert second["model"].scale.untyped_storage().nbytes() == 12, "one row that stands for five"


def without_strides(folder: Path) -> None:
    """As versions wrote it that did not note them."""
    (path,) = folder.rglob("MANIFEST*")
    name = str(path.relative_to(folder))
    path.write_bytes(replace(decode(path.read_bytes(), name), strides=None).encode())


def test_restore_keeps_different_strides_of_a_live_parameter_and_reports_them(tmp_path: Path) -> None:
    first = made(1)
    train(first)
    Checkpointer(tmp_path, first).save(1)
    for noted in (True, False):
        second = made(2, torch.contiguous_format)
        restored = Checkpointer(tmp_path, second).restore()
        assert restored is not None
        assert digest(everything(second)) == digest(everything(first))
        assert second["model"].conv.weight.is_contiguous()
        assert restored.exact is not noted
        if noted:
            (line,) = restored.differences
            assert line == "model/conv.weight: strides (144, 1, 48, 16) when it was saved, (144, 9, 3, 1) here"
        without_strides(tmp_path)


def test_manifest_strides_not_fitting_the_shape_raise_a_damaged_error(tmp_path: Path) -> None:
    Checkpointer(tmp_path, made(1)).save(1)
    (path,) = tmp_path.rglob("MANIFEST*")
    name = str(path.relative_to(tmp_path))
    one = decode(path.read_bytes(), name)
    with pytest.raises(DamagedError, match="do not fit its shape"):
        decode(replace(one, strides={"model/conv.weight": (144, 1, 48, 17)}).encode(), name)


@pytest.mark.parametrize("optimizer", [False, True])
def test_restore_with_cast_weights_is_not_exact_and_names_them(tmp_path: Path, optimizer: bool) -> None:
    def build(dtype: torch.dtype) -> dict[str, Any]:
        state = {"model": torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to(dtype)}
        return {**state, "optimizer": Casting(state["model"].parameters())} if optimizer else state

    first = build(torch.float32)
    for weight in first["model"].parameters() if optimizer else ():
        first["optimizer"].state[weight]["moment"] = [torch.ones(3)]
    Checkpointer(tmp_path, first).save(1)
    restored = Checkpointer(tmp_path, build(torch.bfloat16)).restore()
    assert restored is not None
    assert not restored.exact
    cast = "float32 when it was saved, bfloat16 here: cast"
    names = [f"model/{key}" for key in ("0.weight", "0.bias", "1.weight", "1.bias")]
    assert restored.differences[0] == f"{', '.join(names)} and 2 more: {cast}"
    moments = ", ".join(f"optimizer/state/{i}/moment/0" for i in range(4))
    assert restored.differences[1:] == ((f"{moments}: {cast}",) if optimizer else ())
    assert Checkpointer(tmp_path, build(torch.float32)).restore().exact  # type: ignore[union-attr]


class Casting(torch.optim.SGD):
    """Keeps its state in its weights' dtype, whatever it is given."""

    def state_dict(self) -> Any:
        state = super().state_dict()
        dtype = self.param_groups[0]["params"][0].dtype
        state["state"] = {n: {"moment": [x.to(dtype) for x in of["moment"]]} for n, of in state["state"].items()}
        return state
