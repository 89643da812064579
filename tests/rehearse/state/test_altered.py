"""alter(): torch and safetensors read other values afterwards, and nothing else is other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clusterdp.rehearse.experiments import alter


def test_alter_changes_only_named_tensors_of_a_torch_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    opt = {"m": torch.zeros(3), "step": torch.tensor(7.0), "n": 4, "rng": torch.tensor([0, 255], dtype=torch.uint8)}
    torch.save({"net": {"w": torch.ones(3)}, "opt": opt}, path)
    assert alter(path, ["opt.m", "opt.step", "opt.rng", "opt.n", "opt.gone"]) == 3
    read = torch.load(path)
    assert read["opt"]["m"].tolist() == [0.125] * 3 and read["opt"]["step"] == 8.875
    assert read["opt"]["rng"].tolist() == [1, 254]
    assert read["net"]["w"].tolist() == [1.0] * 3 and read["opt"]["n"] == 4


def test_alter_changes_only_named_tensors_of_a_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(3), "m": torch.zeros(2)}, path)
    assert alter(path, ["m"]) == 1
    assert {name: values.tolist() for name, values in load_file(path).items()} == {"w": [1.0] * 3, "m": [0.125] * 2}


@pytest.mark.parametrize("tensor", [torch.ones(3, dtype=torch.bfloat16), torch.ones(4, 4).t()[:2]])
def test_alter_does_not_touch_bfloat16_and_non_contiguous_tensors(tensor: torch.Tensor, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": tensor}, path)
    before = path.read_bytes()
    assert alter(path, ["w"]) == 0
    assert path.read_bytes() == before
