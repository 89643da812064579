"""Configs without `${...}`: built without OmegaConf, and equal to what OmegaConf makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from clusterdp.config.load import converted, merged, read
from clusterdp.config.tree import Config

CONFIGS = Path(__file__).parents[2] / "configs"
VALUES: dict[str, dict[str, Any]] = {
    "whole numbers for floats": {"checkpoint": {"every_s": 5}, "train": {"timeout_s": 60}},
    "a policy with other defaults than its class": {"restart": {"crash": {"limit": 9}}},
    "nested params": {"params": {"a": [1, {"b": [None, 2.5, "x"]}], "c": {"d": True, "e": "1e-3"}}},
    "lists and mappings": {"launch": {"env": {"A": "1"}}, "resources": {"extra": {"comment": "x", "nice": 7}}},
    "nulls": {"params": {"a": None}, "checkpoint": {"every_s": None}},
}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_config_is_converted_as_by_omegaconf(path: Path) -> None:
    given = read(path)
    if "${" not in repr(given.values):
        assert converted(given.values, Config) == OmegaConf.to_object(merged(given))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_values_are_converted_as_by_omegaconf(values: dict[str, Any]) -> None:
    given = read({"entry": "a:main", **values})
    assert converted(given.values, Config) == OmegaConf.to_object(merged(given))


def test_whole_number_of_a_float_key_becomes_a_float() -> None:
    found = converted({"checkpoint": {"every_s": 5, "keep_last": 3}, "params": {"a": 5}}, Config)
    kinds = [type(each) for each in (found.checkpoint.every_s, found.checkpoint.keep_last, found.params["a"])]
    assert kinds == [float, int, int]


def test_converted_values_are_copies_of_the_given_ones() -> None:
    given = read({"entry": "a:main", "params": {"a": [1], "b": {"c": 2}}})
    converted(given.values, Config).params["a"].append(2)
    assert given.values["params"] == {"a": [1], "b": {"c": 2}}


def test_dry_run_without_interpolation_imports_no_omegaconf(tmp_path: Path) -> None:
    words = ["submit", str(CONFIGS / "digits.yaml"), f"run_dir={tmp_path}/run", "--dry-run"]
    program = f"import sys; from clusterdp.cli import main; main({words!r}); sys.exit('omegaconf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
