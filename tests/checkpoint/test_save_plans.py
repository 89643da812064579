"""A stranger who comes between two ranks while they plan a save must not run code on them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType

from clusterdp.checkpoint.save.sharded import plans_only
from clusterdp.errors import StateError


class Payload:
    def __init__(self, marker: Path):
        self.marker = str(marker)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.marker, "w")


def received(thing: Any) -> Any:
    """As a rank has it that got it from another."""
    data = pickle.dumps(thing)
    return distributed_c10d._tensor_to_object(torch.frombuffer(bytearray(data), dtype=torch.uint8), len(data), None)


def test_plans_only_blocks_code_in_received_pickles_and_unpatches_torch_at_exit(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    with plans_only(), pytest.raises(pickle.UnpicklingError, match=r"a rank has sent a (_io|io)\.open"):
        received(Payload(marker))
    assert not marker.exists()
    received(Payload(marker)).close()
    assert marker.exists()


@pytest.mark.parametrize("name", ["os\nsystem", "builtins\neval", "torch\nload", "torch.serialization\nload"])
def test_plans_only_refuses_a_received_pickle_naming_a_function(name: str) -> None:
    data = f"c{name}\n.".encode()
    with plans_only(), pytest.raises(pickle.UnpicklingError):
        distributed_c10d._unpickler(io.BytesIO(data)).load()


def test_plans_only_admits_pickled_save_plans_state_errors_and_dtypes() -> None:
    plan = SavePlan([WriteItem(MetadataIndex("w", torch.Size([2])), WriteItemType.TENSOR)])
    with plans_only():
        assert received(plan) == plan
        assert isinstance(received(StateError("w: no")), StateError)
        assert received([torch.float32, torch.strided]) == [torch.float32, torch.strided]


class Attribute:
    """Pickled as Python 3.11.0 to 3.11.3 pickles a member of an Enum."""

    def __init__(self, of: Any, name: str):
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


def test_plans_only_admits_enum_members_as_early_python_311_pickles_them() -> None:
    contiguous = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    pickled = pickle.dumps(Attribute(_MEM_FORMAT_ENCODING, contiguous.name))
    with plans_only():
        assert distributed_c10d._unpickler(io.BytesIO(pickled)).load() is contiguous


@pytest.mark.parametrize("name", ["__init__", "__subclasses__"])
def test_plans_only_refuses_other_attributes(name: str) -> None:
    for of in (Metadata, _MEM_FORMAT_ENCODING):
        pickled = pickle.dumps(Attribute(of, name))
        with plans_only(), pytest.raises(pickle.UnpicklingError, match="there is an attribute of"):
            distributed_c10d._unpickler(io.BytesIO(pickled)).load()
