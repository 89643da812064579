"""`export` is the way out of our format: other programs must read what a training saved, and never half of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import torch
from safetensors.torch import load_file

from clusterdp.checkpoint import Checkpointer
from clusterdp.checkpoint.format.layout import SAFETENSORS
from clusterdp.checkpoint.load import torch_file
from clusterdp.checkpoint.state.tree import DTYPES, as_bytes
from tests.checkpoint.training import Training
from tests.operate.checkpoints.conftest import Run, Save, data_file, flip, thing

EVERYTHING: dict[str, Any] = {
    "plain": {
        "a": torch.arange(6.0).reshape(2, 3),
        "none": None,
        "yes": True,
        "no": False,
        "text": "é\n",
        "list": [1, []],
    },
    "numbers": [0, -1, 2**31, -(2**31) - 1, 2**62, 2**200, -(2**200), 0.1, math.inf, -math.inf],
    "tuple": (1, (), (2, torch.ones(2))),
    "size": torch.Size([3, 4]),
    "keys": {0: "int", "0": "str", (1, "x"): "tuple", 2.5: "float", None: "none", True: "bool"},
    "ordered": OrderedDict(b=1, a=2),
    "counter": Counter("aab"),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 4),
    "view": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
}


def equal(a: Any, b: Any) -> bool:
    """To the last bit, and of the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a), as_bytes(b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def test_module_loads_its_exported_safetensors_file(folder: Path, elsewhere: Path, cli: Run) -> None:
    training = Training(seed=1, adam=True)
    Checkpointer(folder, {"model": training.model, "optimizer": training.optimizer}).save(7)
    code, out = cli("export", "saved", "--only", "model", "m.safetensors")
    assert code == 0
    assert out.startswith("m.safetensors: model of step 7 (15 tensors, ") and out.endswith("every byte verified\n")
    fresh = Training(seed=2, adam=True)
    fresh.model.load_state_dict(load_file("m.safetensors"))
    assert equal(fresh.model.state_dict(), training.model.state_dict())
    with safetensors.safe_open("m.safetensors", "pt") as file:
        assert file.metadata().items() >= {"format": "pt", "step": "7"}.items()
    assert cli("export", "saved", "all.safetensors")[0] == 0
    assert {key.partition(".")[0] for key in load_file("all.safetensors")} <= {"model", "optimizer"}
    assert equal(load_file("all.safetensors")["model.first.weight"], training.model.first.weight.detach())


def test_exported_pt_file_equals_the_state_of_module_and_optimizer(folder: Path, cli: Run) -> None:
    training = Training(seed=1, adam=True)
    for parameter in training.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    training.optimizer.step()
    Checkpointer(folder, {"model": training.model, "optimizer": training.optimizer}).save(7)
    assert cli("export", "saved", "all.pt")[0] == 0
    loaded = torch.load("all.pt", weights_only=True)
    assert equal(loaded["model"], training.model.state_dict())
    assert equal(loaded["optimizer"], training.optimizer.state_dict())
    assert loaded["model"]._metadata == training.model.state_dict()._metadata  # type: ignore[attr-defined]
    assert cli("export", "saved", "--only", "model", "m.pth")[0] == 0
    assert equal(torch.load("m.pth", weights_only=True), training.model.state_dict())


def test_exported_pt_file_keeps_every_supported_type_of_state(save: Save, cli: Run) -> None:
    save(1, {"x": EVERYTHING})
    assert cli("export", "saved", "x.pt")[0] == 0
    for options in ({"weights_only": True}, {"weights_only": False}, {"weights_only": True, "mmap": True}):
        assert equal(torch.load("x.pt", **options), {"x": EVERYTHING}), options


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_export_writes_every_dtype_to_pt_and_supported_dtypes_to_safetensors(save: Save, cli: Run, name: str) -> None:
    one = as_bytes(torch.arange(1, 4).to(DTYPES[name])).clone().view(DTYPES[name])
    state = {"x": {"odd": torch.ones(3, dtype=torch.uint8), "it": one, "wide": torch.ones(2, dtype=torch.float64)}}
    save(1, state)
    assert cli("export", "saved", "x.pt")[0] == 0
    assert equal(torch.load("x.pt", weights_only=True), state)
    if name in SAFETENSORS:
        assert cli("export", "saved", "x.safetensors", "--only", "x")[0] == 0
        with safetensors.safe_open("x.safetensors", "pt") as file:
            assert file.get_slice("it").get_dtype() == SAFETENSORS[name]
        if name not in ("uint16", "uint32", "uint64", "float8_e8m0fnu"):  # load_file knows these in some versions only
            loaded = load_file("x.safetensors")
            assert all(equal(loaded[key], tensor) for key, tensor in state["x"].items())
    else:
        code, out = cli("export", "saved", "x.safetensors")
        assert code == 5 and f"has no {name}. Export to a .pt file." in out
        assert not Path("x.safetensors").exists()


def test_exported_tied_weights_stay_tied_in_pt_and_are_duplicated_in_safetensors(save: Save, cli: Run) -> None:
    weight = torch.rand(5)
    save(1, {"model": {"embedding": weight, "head": weight}})
    assert cli("export", "saved", "x.pt", "--only", "model")[0] == 0
    loaded = torch.load("x.pt", weights_only=True)
    assert loaded["embedding"].data_ptr() == loaded["head"].data_ptr()
    assert cli("export", "saved", "x.safetensors", "--only", "model")[0] == 0
    assert equal(load_file("x.safetensors"), {"embedding": weight, "head": weight})


def test_exported_numpy_arrays_become_torch_tensors(save: Save, cli: Run) -> None:
    save(1, {"x": {"array": numpy.arange(3), "scalar": numpy.float32(2)}})
    assert cli("export", "saved", "x.pt")[0] == 0
    assert equal(torch.load("x.pt", weights_only=True)["x"], {"array": torch.arange(3), "scalar": torch.tensor(2.0)})


def test_safetensors_export_uses_slashes_for_keys_colliding_with_dotted_keys(save: Save, cli: Run) -> None:
    save(1, {"x": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "c": torch.ones(2)}})
    assert cli("export", "saved", "x.safetensors", "--only", "x")[0] == 0
    assert equal(load_file("x.safetensors"), {"a.b": torch.zeros(1), "a/b": torch.ones(1), "c": torch.ones(2)})


def test_exported_safetensors_tensors_are_aligned(save: Save, cli: Run) -> None:
    save(1, {"x": {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(3, dtype=torch.bfloat16), "c": torch.ones(3)}})
    assert cli("export", "saved", "x.safetensors")[0] == 0
    data = Path("x.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    starts = {key: 8 + length + header[f"x.{key}"]["data_offsets"][0] for key in "abc"}
    assert (starts["c"] % 64, starts["b"] % 2) == (0, 0)


def test_export_takes_the_newest_or_the_named_step(save: Save, cli: Run) -> None:
    save(1), save(2)
    for words, step in (([], 2), (["--step", 1], 1)):
        cli("export", "saved", "x.pt", "--force", *words)
        assert torch.load("x.pt")["model"]["small"] == step
    assert cli("export", "saved@1", "x.pt", "--force")[1].startswith("x.pt: the state of step 1 ")


def test_export_overwrites_a_file_only_with_force(save: Save, cli: Run) -> None:
    save(1)
    Path("x.pt").write_text("mine")
    code, out = cli("export", "saved", "x.pt")
    assert code == 2 and "--force" in out and Path("x.pt").read_text() == "mine"
    assert cli("export", "saved", "x.pt", "--force")[0] == 0
    assert torch.load("x.pt")["model"]["name"] == "m"


def test_export_force_writes_through_symlinks_and_refuses_pipes(save: Save, cli: Run) -> None:
    save(1)
    Path("old.pt").write_text("old")
    os.symlink("old.pt", "x.pt")
    assert cli("export", "saved", "x.pt", "--force")[0] == 0
    assert os.readlink("x.pt") == "old.pt" and Path("old.pt").read_bytes() != b"old"
    os.mkfifo("pipe.pt")
    code, out = cli("export", "saved", "pipe.pt", "--force")
    assert code == 2 and "pipe.pt: is a pipe or a device. Name a file." in out


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_export_of_damaged_bytes_leaves_the_old_file_unchanged(save: Save, folder: Path, cli: Run, name: str) -> None:
    flip(data_file(folder, save(1).token), -100)
    Path(name).write_text("mine")
    before = sorted(os.listdir())
    code, out = cli("export", "saved", name, "--force")
    assert code == 5 and "checksum" in out and "--step N takes another" in out
    assert Path(name).read_text() == "mine"
    assert sorted(os.listdir()) == before


def test_export_to_a_full_disk_is_an_error_and_leaves_no_file(save: Save, cli: Run, monkeypatch: Any) -> None:
    save(1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch_file, "write", full)
    code, out = cli("export", "saved", "x.pt")
    assert code == 5 and out == "clusterdp: x.pt: cannot be written: No space left on device. Name another place.\n"
    assert os.listdir() == ["saved"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["saved", "x.bin"], 2, "End it in .safetensors"),
        (["saved", "no/x.pt"], 2, "there is no folder no"),
        (["saved", "."], 2, "End it in"),
        (["saved", "x.pt", "--only", "optimizer"], 5, "It has: model."),
        (["saved", "x.pt", "--step", "9"], 5, "Its steps: 1."),
        (["nowhere", "x.pt"], 4, "no such run folder"),
    ],
)
def test_export_with_wrong_arguments_is_a_one_line_error(
    save: Save, cli: Run, words: list[str], code: int, said: str
) -> None:
    save(1)
    found, out = cli("export", *words)
    assert found == code and said in out


PEAK = """
import sys, resource
from clusterdp.cli import main
assert main(sys.argv[1:]) == 0
assert "torch" not in sys.modules
try:
    lines = open("/proc/self/status").read().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
except OSError:  # and not on Linux, where a child begins with its parent's peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
print(peak, file=sys.stderr)
"""


def peak_mb(*words: str) -> float:
    command = [sys.executable, "-c", PEAK, "checkpoint", *words]
    root = Path(__file__).parents[3]
    environ = {"PYTHONPATH": str(root), "PATH": os.defpath}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stderr) / 1024


def test_checkpoint_export_verify_and_diff_use_bounded_memory(folder: Path) -> None:
    """A state of 100 MB whose tensors have 4 MB each goes through less than 48 MB of memory, Python's own aside."""
    state = {f"layer{i:02}": torch.full((1 << 20,), float(i)) for i in range(24)}
    Checkpointer(folder, {"model": thing(state)}).save(1)
    base = peak_mb("ls", "saved")
    assert peak_mb("export", "saved", "x.safetensors") - base < 48
    assert Path("x.safetensors").stat().st_size > 100e6
    assert peak_mb("verify", "saved") - base < 48
    shutil.copytree("saved", "twin")
    assert peak_mb("diff", "saved", "twin") - base < 2 * 48


def test_export_of_a_pt_file_is_refused_if_torch_is_missing(
    save: Save, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(1)
    monkeypatch.delitem(sys.modules, "clusterdp.checkpoint.load.torch_file", raising=False)
    monkeypatch.delattr("clusterdp.checkpoint.load.torch_file", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, out = cli("export", "saved", "x.pt")
    assert code == 2 and "torch is not installed. Install it, or export to .safetensors." in out
    assert os.listdir() == ["saved"]
