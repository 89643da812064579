"""How two runs differ, by what lies in their folders."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.operate.compare.diff import show_diff
from tests.operate.builder import RunBuilder


def made(path: Path, lr: float, torch: str, commit: str, code: dict[str, str], loss: float) -> RunBuilder:
    one = RunBuilder(path).submitted()
    one.run.config.write_text(
        f"name: digits\nrun_dir: {path}\nparams: {{lr: {lr}, epochs: 3}}\nlaunch: {{env: {{}}}}\n"
    )
    one.run.source.write_text(
        json.dumps({"git": {"commit": commit * 40, "dirty": lr > 0.2}, "packages": {"torch": torch, "numpy": "2.0"}})
    )
    for name, text in code.items():
        (one.run.code / name).parent.mkdir(parents=True, exist_ok=True)
        (one.run.code / name).write_text(text)
    one.attempt().measured(step=400, total=400, loss=loss).finished()
    return one


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunBuilder, RunBuilder]:
    monkeypatch.chdir(tmp_path)
    a = made(tmp_path / "a", 0.1, "2.13.0", "1", {"train.py": "1", "pkg/x.py": "same", "old.py": ""}, 0.5)
    b = made(tmp_path / "b", 0.3, "2.12.0", "2", {"train.py": "2", "pkg/x.py": "same", "new.py": ""}, 0.25)
    return a, b


def shown(a: RunBuilder, b: RunBuilder, as_json: bool = False) -> str:
    out = io.StringIO()
    show_diff(a.run, b.run, out, as_json)
    return out.getvalue()


def test_diff_prints_differing_config_packages_final_metrics_and_code_of_two_runs(
    runs: tuple[RunBuilder, RunBuilder],
) -> None:
    assert (
        shown(*runs)
        == """\
             a             b
config
  params.lr  0.1           0.3
packages
  torch      2.13.0        2.12.0
ended
  loss       0.5           0.25
commit       111111111111  222222222222+

code  3 files: new.py, old.py, train.py
  all of it: diff -ru a/code b/code
"""
    )


def test_diff_json_has_config_packages_and_changed_files(runs: tuple[RunBuilder, RunBuilder]) -> None:
    data = json.loads(shown(*runs, as_json=True))
    assert data["runs"] == [str(one.run.path) for one in runs]
    assert (data["config"], data["packages"]) == ({"params.lr": [0.1, 0.3]}, {"torch": ["2.13.0", "2.12.0"]})
    assert (data["changed"], data["only"]) == (["train.py"], [["old.py"], ["new.py"]])
    assert data["commit"] == ["1" * 40, "2" * 40 + "+"]
    assert data["ended"] == {"loss": [0.5, 0.25]}


def test_diff_of_a_run_with_itself_prints_one_line(runs: tuple[RunBuilder, RunBuilder]) -> None:
    said = "The two runs do not differ in config, code, packages, state and last metrics.\n"
    assert shown(runs[0], runs[0]) == said


def test_diff_omits_packages_and_commit_of_a_run_with_invalid_source_record(
    runs: tuple[RunBuilder, RunBuilder],
) -> None:
    a, b = runs
    b.run.source.write_text("[torn")
    (a.run.code / "old.py").unlink()
    text = shown(a, b)
    assert "torch" not in text
    assert "commit       111111111111  -" in text


def test_diff_of_a_run_with_a_missing_config_is_an_error(runs: tuple[RunBuilder, RunBuilder]) -> None:
    runs[1].run.config.unlink()
    with pytest.raises(RunError, match=r"b/config\.yaml: cannot be read: No such file or directory"):
        shown(*runs)
