"""A typing mistake in `entry:` is found at submit, not after a night in the queue; and nothing is imported for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.errors import EntryError
from clusterdp.submission.entry_check import check_entry

SOURCE = """
raise SystemExit("imported")
import torch
from elsewhere import borrowed
def main(job, lr, epochs=3, *, seed=0): ...
def anything(job, **params): ...
if True:
    def branched(job): ...
assigned = lambda job: None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "pkg/inner.py").write_text("def main(job): ...\n")
    (tmp_path / "plain/deep").mkdir(parents=True)
    (tmp_path / "plain/deep/inner.py").write_text("def main(job): ...\n")
    (tmp_path / "broken.py").write_text("def main(:\n")
    (tmp_path / "star.py").write_text("from elsewhere import *\n")
    return tmp_path


@pytest.mark.parametrize(
    ("entry", "params"),
    [
        ("train:main", ["lr"]),
        ("train:main", ["lr", "epochs", "seed"]),
        ("train:anything", ["whatever"]),
        ("train:branched", []),
        ("train:assigned", ["unknowable"]),
        ("train:borrowed", []),
        ("pkg.inner:main", []),
        ("plain.deep.inner:main", []),
        ("star:main", []),
        ("json:dumps", []),
        ("clusterdp.recipes.digits:main", ["epochs"]),
    ],
)
def test_check_entry_accepts_each_possibly_valid_entry_without_importing_it(
    folder: Path, entry: str, params: list[str]
) -> None:
    check_entry(entry, dict.fromkeys(params, 1), folder)


def test_check_entry_accepts_a_missing_module_if_it_may_be_elsewhere(folder: Path) -> None:
    check_entry("trian:main", {}, folder, elsewhere=True)
    with pytest.raises(EntryError):
        check_entry("train:mian", {}, folder, elsewhere=True)


@pytest.mark.parametrize(
    ("entry", "params", "message"),
    [
        ("trian:main", [], "there is no module trian in the submit directory"),
        ("trian:main", [], "beside a config below it, or in this interpreter. Submit from the folder that holds it"),
        ("pkg.outer:main", [], "there is no module pkg.outer in pkg"),
        ("plain.deep.outer:main", [], "there is no module plain.deep.outer in plain.deep"),
        ("plain.deep:main", [], "there is no module plain.deep in plain"),
        ("train.main:x", [], "there is no module train.main in train"),
        ("train:mian", [], "has no mian. Did you mean train:main?"),
        ("train:other", [], "has no other. Define it there"),
        ("broken:main", [], "broken.py:1: "),
        (
            "train:main",
            ["lr", "epoch"],
            "params.epoch: train:main takes no such parameter. Did you mean params.epochs?",
        ),
        ("train:branched", ["x"], "params.x: train:branched takes no such parameter. It takes none."),
        ("train:main", [], "params.lr: train:main needs it."),
    ],
)
def test_check_entry_refuses_an_invalid_entry_or_param_in_one_line(
    folder: Path, entry: str, params: list[str], message: str
) -> None:
    with pytest.raises(EntryError) as caught:
        check_entry(entry, dict.fromkeys(params, 1), folder)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
