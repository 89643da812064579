"""The elements of a sweep: how values are written, how blocks combine, and that each element is the run it would be by
itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from clusterdp import config
from clusterdp.config.elements import Sweep, resolve_sweep
from clusterdp.config.load import as_words
from clusterdp.errors import ConfigError

BASE: dict[str, Any] = {"entry": "train:main", "params": {"lr": 0.5, "wd": "${params.lr}"}}


def sweep(block: dict[str, Any] | None = None, *words: str, base: dict[str, Any] | None = None) -> Sweep:
    return resolve_sweep(config.read({**(base or BASE), **({"sweep": block} if block else {})}, sweeps=words))


def values(*words: str) -> list[list[Any]]:
    return [list(element.values.values()) for element in sweep(None, *words).elements]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.1,1e-2", [0.1, 0.01]),
        ("[0.1, 1e-2]", [0.1, 0.01]),
        ("[1, 2],[3]", [[1, 2], [3]]),
        ("[[1, 2]]", [[1, 2]]),
        ("range(3)", [0, 1, 2]),
        ("range(1, 7, 3)", [1, 4]),
        ("range(2,0,-1)", [2, 1]),
        ("true,no,null,'1','a,b',a b", [True, False, None, "1", "a,b", "a b"]),
        ("0.1", [0.1]),
        ("{a: 1},{a: 2}", [{"a": 1}, {"a": 2}]),
    ],
)
def test_sweep_option_takes_lists_ranges_and_yaml_values(text: str, wanted: list[Any]) -> None:
    assert values(f"params.x={text}") == [[value] for value in wanted]


def test_swept_keys_multiply_with_the_last_key_changing_fastest() -> None:
    assert values("params.a=1,2", "params.b=range(2)") == [[1, 0], [1, 1], [2, 0], [2, 1]]


def test_grid_zip_points_and_random_of_the_file_multiply() -> None:
    block = {
        "grid": {"params.a": "range(2)"},
        "zip": {"params.b": [1, 2], "params.c": ["x", "y"]},
        "points": [{"params.d": 5}],
        "random": {"params.e": "choice(7)"},
        "samples": 1,
    }
    rows = [list(element.values.values()) for element in sweep(block).elements]
    assert rows == [[0, 1, "x", 5, 7], [0, 2, "y", 5, 7], [1, 1, "x", 5, 7], [1, 2, "y", 5, 7]]


def test_swept_item_of_a_list_leaves_the_others() -> None:
    base = {"command": "prog ${params.layers.0}", "params": {"layers": [64, 32]}}
    elements = sweep(None, "params.layers.0=1,2,3", base=base).elements
    assert [each.config.params["layers"] for each in elements] == [[1, 32], [2, 32], [3, 32]]


def test_comma_in_a_value_without_sweep_is_text() -> None:
    given = config.read(BASE, ["params.name=a,b"])
    assert not given.sweeps
    assert config.resolve(given).config.params["name"] == "a,b"


COMMAND = ["train", "--lr=${params.lr}", "${params.lr}", "${train.seed}"]


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (
            {
                "command": COMMAND,
                "params": {"lr": 1, "deep": {"a": [1, "${params.lr}"], "b": 2}},
                "name": "x",
                "checkpoint": {"url": "/data/${name}"},
            },
            ("params.lr=0.1,x", "params.deep.b=3,{c: '${train.seed}'}", "train.seed=range(2)"),
        ),
        (
            {"command": "train", "params": {"lr": 1, "deep": {"a": [1, 2], "b": {"c": 1}}}},
            ("params.lr=0.1,x", "params.deep.b.c=3,null", "params.new.one=true,1e-3"),
        ),
    ],
    ids=["with references", "params alone"],
)
def test_each_sweep_element_equals_its_config_resolved_alone(base: dict[str, Any], words: tuple[str, ...]) -> None:
    """The second and later ones are resolved in parts: nothing may be different for that."""
    found = sweep(None, *words, base=base)
    assert len(found.elements) == 8
    for element in found.elements:
        alone = config.from_mapping(base, [f"{key}={json.dumps(value)}" for key, value in element.values.items()])
        assert element.config == alone
        assert as_words(element.config.command) == element.config.command
        assert config.dump(element.config) == config.dump(alone)


def test_random_sweep_draws_again_instead_of_equal_elements() -> None:
    """Two of 2,479 samples, rounded to six digits, were equal, and ended the submit."""
    block = {"random": {"params.a": "uniform(1.0001, 1.0009)"}, "samples": 60, "seed": 0}
    found = [element.values["params.a"] for element in sweep(block).elements]
    assert len({*found}) == len(found) == 60


def test_random_sweep_values_are_reproducible_by_seed_and_within_bounds() -> None:
    def drawn(seed: int, **more: str) -> list[dict[str, Any]]:
        given = {"params.lr": "log(1e-5, 1e-2)", "params.wd": "uniform(0, 1)", "params.n": "choice(16, 32)", **more}
        block = {"random": given, "samples": 60, "seed": seed}
        return [element.values for element in sweep(block).elements]

    rows = drawn(0)
    assert rows == drawn(0) != drawn(1)
    assert all(1e-5 <= row["params.lr"] <= 1e-2 and 0 <= row["params.wd"] <= 1 for row in rows)
    assert {row["params.n"] for row in rows} == {16, 32}
    below = sum(math.log10(row["params.lr"]) < -3.5 for row in rows)
    assert 15 < below < 45, "as many below the middle of the logarithms as above"
    others = drawn(0, **{"params.more": "uniform(0, 1)"})
    assert [row["params.lr"] for row in others] == [row["params.lr"] for row in rows]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["params.lr"], r"--sweep params\.lr: is not KEY=VALUES"),
        (["params.lr="], r"sweep\.grid\.params\.lr: has no values"),
        (["params.lr=[]"], r"sweep\.grid\.params\.lr: has no values"),
        (["params.lr=range(3"], r"range\(3 is neither values nor a whole range\(\.\.\.\) or log"),
        (["params.lr=range(3),5"], r"range\(3\),5 is neither values"),
        (["params.lr=range(x)"], r"'range\(x\)' is not range\(STOP\)"),
        (["params.lr=range()"], r"is not range\(STOP\)"),
        (["params.lr=range(0)"], r"has no numbers in it"),
        (["params.lr=range(1000000)"], r"has 1000000 numbers; a sweep has 10000 elements at most"),
        (["params.lr=linspace(0, 1)"], r"there is no linspace\(\)\. Write a list, range\(5\)"),
        (["params.lr=range(200)", "params.wd=range(200)"], r"200 x 200 are 40000 elements; 10000 are the most"),
        (["params.lr=1,2", "params.lr=3"], r"params\.lr is swept already"),
        (["params.lr=1,2,1"], r"elements 0 and 2 are the same \(params\.lr=1\)"),
        (["parms.lr=1,2"], r"command line: parms: there is no such key\. Did you mean params\?"),
        (["checkpoint.evry_s=1,2"], r"checkpoint\.evry_s: there is no such key\. Did you mean checkpoint\.every_s\?"),
        (["checkpoint=1,2"], r"checkpoint: has keys of its own. Name one of them, as checkpoint\.url"),
        (["train.seed.x=1,2"], r"train\.seed\.x: train\.seed has no keys below it"),
        (["train.seed=1,a"], r"command line: train\.seed: 'a' is not a whole number"),
        (["train.accumulate=1,2,0"], r"element 2 \(train\.accumulate=0\): .*train\.accumulate: 0 is less than 1"),
        (["params.lr=1,2", "params.lr.x=1"], r"params\.lr\.x is a part of params\.lr"),
        (["params.lr=1], [2"], r"is not"),
        (["params.lr=0.1,,0.2"], r"--sweep params\.lr: 0\.1,,0\.2 has an empty value between two commas\. Write null"),
        (
            ["sweep.parallel=1,2"],
            r"command line: sweep\.parallel: is one value for the whole sweep\. Do not sweep it\.",
        ),
        (["params.lr=uniform(0,1)"], r"sweep\.samples: is not set"),
        (["params.api_key=aB3dE6gH9jK2mN5pQ8,sT1vW4yZ7bC0eF3hJ6"], r"params\.api_key: is a secret"),
    ],
)
def test_mistake_in_a_sweep_option_is_one_line_with_key_and_remedy(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        sweep(None, *words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"zip": {"params.a": [1, 2], "params.b": [1]}}, r"not of one length: params\.a has 2, params\.b has 1"),
        ({"grid": {"params.a": 3}}, r"sweep\.grid\.params\.a: 3 is one value, not several"),
        ({"grid": {"params.a": "uniform(0, 1)"}}, r"is drawn at random. Put it under sweep\.random"),
        ({"points": [{"params.a": 1}, {"params.b": 1}]}, r"sweep\.points\[1\]: has params\.b, not params\.a"),
        ({"grid": {"params.a": [1]}, "zip": {"params.a": [2]}}, r"params\.a is in two of grid, zip"),
        ({"random": {"params.a": "log(0, 1)"}, "samples": 2}, r"starts at 0, which has no logarithm"),
        ({"random": {"params.a": "uniform(1, 0)"}, "samples": 2}, r"needs two numbers, the smaller one first"),
        ({"random": {"params.a": "uniform(0, 1"}, "samples": 2}, r"'uniform\(0, 1' is not uniform\(0, 1\)"),
        ({"random": {"params.a": "range(3)"}, "samples": 2}, r"'range\(3\)' is not uniform"),
        ({"random": {"params": {"a": "log(1, 2)"}}, "samples": 2}, r"keys below it.* write `params\.a: log\(1, 2\)`\."),
        (
            {"grid": {"params": {"a": {"b": [1, 2]}}}},
            r"sweep\.grid\.params: .* dotted: write `params\.a\.b: \[1, 2\]`\.",
        ),
        ({"random": {"params.a": "choice()"}, "samples": 2}, r"nothing to choose from"),
        ({"random": {"params.a": "uniform(0, 1)"}, "samples": 20_000}, r"20000 are more than 10000"),
        ({"random": {"params.a": "choice(1, 2)"}, "samples": 3}, r"sweep\.samples: 3 .* different values: 2\. Draw"),
        ({"grid": {"params.a": [1, 2]}, "samples": 2}, r"sweep\.samples: has no effect without sweep\.random"),
        ({"grid": {"params.a": [1, 2]}, "parallel": 0}, r"sweep\.parallel: 0 is less than 1"),
        ({"grid": {"params.a": [1, 2]}, "on_refusal": "ignore"}, r"sweep\.on_refusal: 'ignore' is none of undo, keep"),
        ({"grid": {"params.a": [1, 2]}, "paralel": 2}, r"sweep\.paralel: there is no such key"),
    ],
)
def test_mistake_in_the_sweep_block_names_key_and_remedy(block: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sweep(block)


def test_invalid_sweep_value_is_named_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("entry: train:main\nsweep:\n  grid:\n    train.seed: [1, x]\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:4: train\.seed: 'x' is not a whole number"):
        resolve_sweep(config.read(file))


def test_sweep_fills_a_missing_value_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("entry: train:main\nparams:\n  lr: ???\n")
    found = resolve_sweep(config.read(file, sweeps=["params.lr=1,2"]))
    assert [element.config.params["lr"] for element in found.elements] == [1, 2]


def test_sweep_values_may_be_unquoted_interpolations() -> None:
    words = ["params.tag=${params.lr},a${params.lr}-${params.n}x,'b${params.lr}',[c],${oc.env:NONE,d}"]
    sweep = resolve_sweep(config.read({"entry": "a:b", "params": {"lr": 1, "n": 2}}, sweeps=words))
    assert [element.config.params["tag"] for element in sweep.elements] == [1, "a1-2x", "b1", ["c"], "d"]


def test_swept_entries_are_looked_for_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    for name in ("conf/one.py", "conf/two.py", "here.py"):
        (tmp_path / name).touch()
    (tmp_path / "conf/c.yaml").write_text("entry: one:main\n")
    monkeypatch.chdir(tmp_path)
    found = resolve_sweep(config.read("conf/c.yaml", sweeps=["entry=two:main,here:main,one:main"]))
    assert [each.config.entry for each in found.elements] == ["conf.two:main", "here:main", "conf.one:main"]
    found = resolve_sweep(config.read("conf/c.yaml", sweeps=["params.lr=1,2"]))
    assert [each.config.entry for each in found.elements] == ["conf.one:main"] * 2
