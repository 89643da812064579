"""State comes back as it was, to the bit and the type, or is refused with its key before anything is written."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterdp.checkpoint.format.skeleton import check
from clusterdp.checkpoint.save.state_snapshot import StatePart
from clusterdp.checkpoint.save.writer import Staging
from clusterdp.checkpoint.state.tree import DTYPES, Flattener, as_bytes, unflatten
from clusterdp.errors import StateError

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@st.composite
def tensor(draw: st.DrawFn) -> torch.Tensor:
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES.keys() - {"complex32"})))]  # torch itself warns of that one
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = math.prod(shape) * dtype.itemsize
    data = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        data = bytearray(byte & 1 for byte in data)
    one = (torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)).view(dtype)
    one = one.reshape(shape)
    return draw(st.sampled_from([one, one.clone().transpose(0, -1) if one.dim() > 1 else one]))


@st.composite
def array(draw: st.DrawFn) -> Any:
    kinds = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "float64", "complex64", "complex128"]
    shape = draw(st.lists(st.integers(0, 4), max_size=2))
    one = numpy.zeros(shape, draw(st.sampled_from(kinds)))
    one.reshape(-1)[: one.size // 2] = 1
    return draw(st.sampled_from([one, one.T, one[::-1] if shape else one[()]]))


keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
keys = keys | st.tuples(keys, keys)
trees = st.recursive(
    scalars | tensor() | array(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=12,
)


def through_bytes(tree: Any) -> Any:
    """Taken apart, written as JSON and one buffer, and put together from these."""
    part = StatePart.of({"x": tree})
    file = Staging().fill(part, 0, part.layout.total, {})
    buffer = torch.frombuffer(bytearray(file)[4096:] or bytearray(1), dtype=torch.uint8)
    tensors = {
        e.name: buffer[e.offset : e.end].clone().view(DTYPES[e.dtype]).reshape(e.shape) for e in part.layout.entries
    }
    return unflatten(json.loads(json.dumps(part.skeleton, allow_nan=False)), tensors)["x"]


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(as_bytes(a), as_bytes(b))
    elif isinstance(a, (numpy.ndarray, numpy.generic)):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, dict):
        for (key_a, value_a), (key_b, value_b) in zip(a.items(), b.items(), strict=True):
            assert_same(key_a, key_b)
            assert_same(value_a, value_b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for item_a, item_b in zip(a, b, strict=True):
            assert_same(item_a, item_b)
    elif isinstance(a, float):
        assert repr(a) == repr(b)
    else:
        assert a == b


@given(trees)
def test_any_state_tree_survives_saving_with_bits_types_and_order(tree: Any) -> None:
    assert_same(through_bytes(tree), tree)


def test_every_kind_of_tensor_survives_saving() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tree = {
        "strided": base[::2, 1::2],
        "transposed": base.T,
        "expanded": torch.ones(1).expand(5),
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "neg": torch.tensor([1 + 2j]).conj().imag,
        "grad": torch.nn.Parameter(torch.randn(3)),
        "size": torch.Size([1, 2]),
        "counter": Counter("abca"),
        "slash/and~tilde": {"$tensor": torch.ones(1), "": torch.zeros(1)},
        "collide": {0: torch.zeros(1), "0": torch.ones(1)},
    }
    back = through_bytes(tree)
    assert torch.equal(back.pop("grad"), tree.pop("grad"))
    assert_same({k: v.resolve_conj().resolve_neg() if torch.is_tensor(v) else v for k, v in tree.items()}, back)


def test_tied_tensors_are_stored_once_and_restored_tied() -> None:
    shared = torch.randn(10)
    part = StatePart.of({"x": {"a": shared, "b": shared, "view": shared[:5], "neg": torch._neg_view(shared)}})
    assert sorted(part.tensors) == ["x/a", "x/neg", "x/view"]
    back = unflatten(part.skeleton, part.tensors)["x"]
    assert back["a"] is back["b"]
    assert torch.equal(back["neg"], -shared)


def test_state_dict_metadata_with_module_versions_survives_saving() -> None:
    state = torch.nn.BatchNorm1d(3).state_dict()
    assert through_bytes(state)._metadata == state._metadata  # type: ignore[attr-defined]
    assert state._metadata[""]["version"] == 2  # type: ignore[attr-defined]


class Colour(Enum):
    RED = 1


class Words(str):
    __slots__ = ()


def _in_itself() -> list[Any]:
    knot: list[Any] = []
    knot.append(knot)
    return knot


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"a": [1, {2: object()}]}, "x/a/1/2"),
        ({"a": {1, 2}}, "x/a"),
        ({"a": b"bytes"}, "x/a"),
        ({"a": lambda: 0}, "x/a"),
        ({"a": Words("w")}, "x/a"),
        ({"a": 1j}, "x/a"),
        ({"a": defaultdict(int)}, "x/a"),
        ({"a": Path("p")}, "x/a"),
        ({"a": {Colour.RED: 1}}, "x/a"),
        ({"a": {(1, (2,)): 1}}, "x/a"),
        ({"a": torch.eye(3).to_sparse()}, "x/a"),
        ({"a": torch.empty(3, device="meta")}, "x/a"),
        ({"a": numpy.array(["text"])}, "x/a"),
        ({"a": numpy.array([object()])}, "x/a"),
        ({"a": numpy.zeros(3, ">f4")}, "x/a"),
        ({"a": numpy.ma.masked_array([1])}, "x/a"),
        ({"a": _in_itself()}, "x/a/0/0"),
        ({"slash/": {"~": object()}}, "x/slash~1/~0"),
    ],
)
def test_unsavable_object_is_refused_with_its_full_key_and_a_remedy(value: Any, key: str) -> None:
    with pytest.raises(StateError, match=rf"^{key}") as caught:
        Flattener().flatten(value, "x")
    assert str(caught.value).endswith("."), "it says what to do"


def test_integers_of_any_size_survive_saving() -> None:
    huge = 10 ** (sys.get_int_max_str_digits() + 1) if hasattr(sys, "get_int_max_str_digits") else 10**5000
    assert through_bytes([huge, -huge, 2**64, 2**63, -(2**63) - 1]) == [huge, -huge, 2**64, 2**63, -(2**63) - 1]


def test_unflatten_raises_a_value_error_for_an_invalid_reference() -> None:
    with pytest.raises(ValueError, match="nothing"):
        unflatten({"$tensor": "nothing"}, {})
    with pytest.raises(ValueError, match=r"\$what"):
        unflatten({"$what": 1}, {})


def test_dtypes_devices_and_enum_members_are_values() -> None:
    tree = {"dtype": torch.bfloat16, "device": torch.device("cpu"), "color": Colour.RED}
    skeleton = json.loads(json.dumps(Flattener().flatten(tree, "x")))
    assert unflatten(skeleton, {}) == tree
    check(skeleton, ())


@pytest.mark.parametrize(
    "path", [["os", "system", "x"], ["tests.nowhere", "Colour", "RED"], [__name__, "Colour", "BLUE"]]
)
def test_enum_of_another_program_is_refused(path: list[str]) -> None:
    with pytest.raises(ValueError, match="which the program does not have"):
        unflatten({"$enum": path}, {})
