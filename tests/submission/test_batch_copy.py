"""RUN/batch: a read-only copy of the batch program, shared between runs, which goes with the run folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.submission.render.batch_rules import rules_of
from clusterdp.submission.render.script_spec import make_spec
from clusterdp.submission.snapshot.batch_copy import PROGRAM, write_batch


def run_folder(tmp_path: Path, name: str, rules: dict[str, object] | None = None) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    write_batch(folder / "batch", rules or {})
    (folder / "config.yaml").touch()
    return folder


def files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def test_batch_copy_has_each_module_read_only_in_writable_folders(tmp_path: Path) -> None:
    copy = run_folder(tmp_path, "run") / "batch"
    names = {f"batch/{path.relative_to(PROGRAM)}" for path in PROGRAM.rglob("*.py")} - {"batch/__main__.py"} | {
        "__main__.py"
    }
    assert {name for name in files(copy) if name.endswith(".py")} == names
    assert all(not path.stat().st_mode & 0o222 for name, path in files(copy).items() if name != "rules.json")
    assert (copy / "rules.json").stat().st_mode & 0o777 == 0o600
    shutil.rmtree(copy)


def test_later_run_hard_links_the_batch_program_and_writes_its_own_rules(tmp_path: Path) -> None:
    earlier = files(run_folder(tmp_path, "one-20260101-000000-0000", {"name": "one"}) / "batch")
    later = files(run_folder(tmp_path, "two-20260102-000000-0000", {"name": "two"}) / "batch")
    same = {name for name in later if os.path.samefile(earlier[name], later[name])}
    assert same == later.keys() - {"rules.json"}
    assert json.loads(later["rules.json"].read_text()) == {"name": "two"}


def test_second_batch_copy_replaces_the_first_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run")
    (folder / "batch/batch/gone.py").touch()
    write_batch(folder / "batch", {"name": "new"})
    assert "batch/gone.py" not in files(folder / "batch")
    assert json.loads((folder / "batch/rules.json").read_text()) == {"name": "new"}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_batch_copy_imports_only_the_standard_library(tmp_path: Path) -> None:
    copy = run_folder(tmp_path, "run") / "batch"
    code = f"import sys; sys.path[:0] = [{str(copy)!r}]; import batch.main; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=True)
    roots = {name.partition(".")[0] for name in done.stdout.split()}
    assert roots - {"batch"} <= set(sys.stdlib_module_names) | {"__main__"}


@pytest.mark.parametrize("values", [{"entry": "a:b"}, {"command": "true"}, {"script": "true"}])
def test_rules_read_by_the_batch_program_match_the_config(tmp_path: Path, values: dict[str, object]) -> None:
    from clusterdp.batch.files.rules import Policy, Rules, read_rules

    loaded = config.from_mapping({**values, "name": "é", "restart": {"memory": {"limit": 4, "wait_s": 1.5}}})
    rules = rules_of(make_spec(loaded, tmp_path, tmp_path, "python"))
    assert rules.keys() <= set(Rules._fields), "the program drops what it does not know"
    copy = run_folder(tmp_path, "run", rules) / "batch"
    read = read_rules(str(copy))
    assert read.policy("memory") == Policy(4, 2, False)
    assert read.policy("node-lost").avoid
    assert (read.name, read.kind, read.max_crashes) == ("é", next(iter(values)), 3)
    assert (read.max_hours, read.policy("asked")) == (48 if "entry" in values else None, Policy())


def test_rules_of_a_later_version_are_read_without_its_keys(tmp_path: Path) -> None:
    from clusterdp.batch.files.rules import Policy, read_rules

    rules = {"nodes": 2, "later": 1, "policies": {"crash": {"limit": 4, "later": 1}}}
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    read = read_rules(str(tmp_path))
    assert (read.nodes, read.policy("crash")) == (2, Policy(4))
