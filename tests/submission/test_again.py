"""A run that is repeated from its record, and what that record says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import clusterdp
from clusterdp.errors import RunError
from clusterdp.rundir import RunDir
from clusterdp.submission.resume import plan_again, plan_new
from clusterdp.submission.snapshot.source_record import installed_packages


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git work tree, from which one run was submitted."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text("#!/bin/sh\necho 41\n")
    (folder / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    (work / ".gitignore").write_text("runs/\n")
    (work / "train.py").write_text("def main(job, lr=0.1): ...\n")
    git("init", "-q")
    git("remote", "add", "origin", "https://me:secret@host/x.git")
    git("add", ".")
    git("commit", "-qm", "first")
    (work / "train.py").write_text("def main(job, lr=0.1): ...  # edited\n")
    (work / "new.py").write_text("")
    clusterdp.submit({"name": "t", "entry": "train:main", "run_dir": "runs/first"})
    return work


def git(*words: str) -> str:
    named = ["git", "-c", "user.name=x", "-c", "user.email=x", *words]
    return subprocess.run(named, check=True, capture_output=True, text=True).stdout


def test_source_record_has_git_commit_diff_and_python_but_no_password(work: Path) -> None:
    run = RunDir(work / "runs/first")
    record = json.loads(run.source.read_text())
    commit = git("rev-parse", "HEAD").strip()
    assert record["git"]["commit"] == commit
    assert (record["git"]["dirty"], record["git"]["untracked"]) == (True, ["new.py"])
    assert (record["dir"], record["python"]) == (str(work), sys.executable)
    assert "\n+def main(job, lr=0.1): ...  # edited" in run.source_diff.read_text()
    assert "secret" not in run.source.read_text()
    assert run.source.stat().st_mode & 0o077 == run.source_diff.stat().st_mode & 0o077 == 0


def test_repeated_run_has_the_entry_of_its_first_submit(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "conf").mkdir()
    (work / "conf/beside.py").write_text("def main(job): ...\n")
    (work / "conf/cfg.yaml").write_text("entry: beside:main\nrun_dir: runs/beside\n")
    run = clusterdp.submit("conf/cfg.yaml").run
    assert "\nentry: conf.beside:main\n" in run.config.read_text()
    monkeypatch.chdir(work / "conf")
    assert plan_again(run, None, []).spec.config.entry == "conf.beside:main"
    assert plan_new(run, ["run_dir=again"]).spec.config.entry == "conf.beside:main"


def test_recorded_packages_match_the_installed_distributions() -> None:
    from importlib.metadata import distributions

    known: dict[str, str] = {}
    for each in distributions():  # the first of two counts: setuptools adds packages of its own to the path
        known.setdefault(each.metadata["Name"].lower().replace("_", "-").replace(".", "-"), each.version)
    found = {name.replace(".", "-"): version for name, version in installed_packages().items()}
    assert found == known


def test_source_record_omits_git_outside_a_repository_and_packages_of_foreign_python(
    tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.chdir(tmp_path / "plain")
    clusterdp.submit({"command": "true", "launch": {"python": "/opt/python"}, "run_dir": "run"})
    record = json.loads(Path("run/source.json").read_text())
    assert record["git"] is None
    assert "packages" not in record
    assert not Path("run/source.diff").exists()


def test_again_reuses_the_recorded_code_with_overridden_params(work: Path) -> None:
    (work / "train.py").write_text("broken(")
    old = RunDir(work / "runs/first")
    plan = plan_new(old, ["params.lr=0.3"])
    assert plan.run.path.parent == old.path.parent
    plan.carry_out()
    assert plan.spec.config.params == {"lr": 0.3}
    assert "# edited" in (plan.run.code / "train.py").read_text()
    assert (plan.run.code / "train.py").samefile(old.code / "train.py")
    assert plan.run.source.read_text() == old.source.read_text()
    assert plan.run.source_diff.read_text() == old.source_diff.read_text()
    assert str(plan.run.code) in plan.script.text


def test_again_copies_no_pycache_and_keeps_symlinks(work: Path) -> None:
    old = RunDir(work / "runs/first")
    (old.code / "__pycache__").mkdir()
    (old.code / "__pycache__/train.pyc").write_text("")
    (old.code / "data").symlink_to("/scratch/data")
    (old.code / "folder").symlink_to(work)
    for link in ("data", "folder"):
        os.utime(old.code / link, (0, 0), follow_symlinks=False)  # as old as the snapshot
    plan = plan_new(old, ["run_dir=runs/second"])
    plan.carry_out()
    assert sorted(os.listdir(plan.run.code)) == [".gitignore", "data", "folder", "new.py", "train.py"]
    assert os.readlink(plan.run.code / "data") == "/scratch/data"


def test_again_copies_no_output_left_beside_the_code(work: Path) -> None:
    """A new run would go on from it."""
    old = RunDir(work / "runs/first")
    later = old.config.stat().st_mtime + 1
    (old.code / "out").mkdir()
    (old.code / "out/ckpt.pt").write_text("step 100")
    (old.code / "latest").symlink_to("out/ckpt.pt")
    for name in ("out/ckpt.pt", "latest"):
        os.utime(old.code / name, (later, later), follow_symlinks=False)
    plan = plan_new(old, ["run_dir=runs/second"])
    plan.carry_out()
    assert sorted(os.listdir(plan.run.code)) == [".gitignore", "new.py", "train.py"]


def test_again_ignores_from_step_and_starts_at_the_beginning(work: Path) -> None:
    old = RunDir(work / "runs/first")
    text = old.config.read_text()
    assert "from_step: null" in text
    old.config.write_text(text.replace("from_step: null", "from_step: 40"))
    assert plan_new(old, []).spec.config.restart.from_step is None


def test_again_without_a_snapshot_uses_the_current_code(work: Path) -> None:
    clusterdp.submit({"entry": "train:main", "snapshot": {"enabled": False}, "run_dir": "runs/bare"})
    plan = plan_new(RunDir(work / "runs/bare"), [])
    assert plan.code_of is None
    assert plan.spec.submit_dir == work


def test_again_refuses_a_folder_without_config_yaml(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no config\.yaml, so it is not a run folder"):
        plan_new(RunDir(tmp_path), [])
