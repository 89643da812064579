"""From a plan to a job: a dry run writes nothing, and a submission that fails leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clusterdp
from clusterdp import config
from clusterdp.errors import RunError, SubmitError
from clusterdp.launch.again import plan_again, send_again
from clusterdp.launch.plan import make_plan


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an sbatch that answers what the test writes into it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    say(folder, "echo 41")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("def main(job, **params): ...\n")
    monkeypatch.chdir(work)
    return folder


def say(folder: Path, lines: str) -> None:
    (folder / "sbatch").write_text(f"#!/bin/bash\n{lines}\n")
    (folder / "sbatch").chmod(0o755)


def test_submit_returns_a_job_with_its_run_folder(sbatch: Path) -> None:
    job = clusterdp.submit({"entry": "train:main", "run_dir": "deep/run"})
    assert job.id == "41"
    assert job.run.path == Path.cwd() / "deep/run"
    assert job.run.script.read_text().startswith("#!/bin/bash\n")
    assert (job.run.code / "train.py").exists()
    assert config.read_resolved(job.run.config)["entry"] == "train:main"
    assert job.current_id == "41"


def test_a_dry_run_writes_nothing_and_prints_what_submit_sends(sbatch: Path, tmp_path: Path) -> None:
    say(sbatch, f'cat "${{@: -1}}" >{tmp_path}/sent; echo 41')
    (Path.cwd() / "c.yaml").write_text("command: [echo, 'a b']\n")
    before = sorted(Path.cwd().rglob("*"))
    words = [sys.executable, "-m", "clusterdp", "submit", "c.yaml", "run_dir=r", "--cluster=slurm"]
    dry = subprocess.run([*words, "--dry-run"], capture_output=True, text=True, check=True)
    assert sorted(Path.cwd().rglob("*")) == before
    subprocess.run(words, capture_output=True, check=True)
    assert dry.stdout == (tmp_path / "sent").read_text() == Path("r/job.sbatch").read_text()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1", "invalid partition specified: x"),
        ("echo hello", "answered 'hello', not a job id"),
    ],
)
@pytest.mark.parametrize("empty_folder", [False, True])
def test_what_sbatch_refuses_is_passed_on_and_nothing_is_left(
    sbatch: Path, lines: str, said: str, empty_folder: bool
) -> None:
    say(sbatch, lines)
    if empty_folder:
        Path("deep/run").mkdir(parents=True)
    with pytest.raises(SubmitError, match=said):
        clusterdp.submit({"command": "true", "run_dir": "deep/run"})
    assert Path("deep").exists() == empty_folder
    assert not list(Path().glob("deep/run/*"))


def test_no_sbatch_on_path_is_said(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SubmitError, match=r"sbatch: not on PATH.*--cluster local"):
        clusterdp.submit({"command": "true", "run_dir": "run"})
    assert not Path("run").exists()


def test_a_run_folder_that_holds_something_or_cannot_be_made_is_refused(sbatch: Path) -> None:
    clusterdp.submit({"command": "true", "run_dir": "run"})
    with pytest.raises(RunError, match="holds a run already"):
        clusterdp.submit({"command": "true", "run_dir": "run"})
    with pytest.raises(RunError, match="cannot be written"):
        clusterdp.submit({"command": "true", "run_dir": "train.py/run"})


def test_two_runs_of_one_second_have_different_folders(sbatch: Path) -> None:
    c = config.from_mapping({"name": "a/b c", "command": "true"})
    paths = {make_plan(c).run.path for _ in range(20)}
    assert len(paths) == 20
    assert all(path.parent == Path.cwd() / "runs" and path.name.startswith("a-b-c-") for path in paths)


def test_a_resume_keeps_the_config_but_for_what_is_asked(sbatch: Path) -> None:
    job = clusterdp.submit({"script": "echo \\${HOME}", "run_dir": "run", "params": {"lr": 1, "x": 2}})
    say(sbatch, "echo 42")
    plan = plan_again(job.run, 30, ["params.lr=5", "resources.time=9"])
    assert plan.spec.config.params == {"lr": 5, "x": 2}
    assert "#SBATCH --time=9" in plan.script.text
    assert "echo ${HOME}" in plan.script.text
    assert "CLUSTERDP_RESUME_STEP=30" in plan.script.text
    assert send_again(plan).id == "42"
    assert job.current_id == "42"


def test_a_resume_that_fails_leaves_the_run_as_it_was(sbatch: Path) -> None:
    job = clusterdp.submit({"command": "true", "run_dir": "run"})
    before = job.run.script.read_text(), job.run.config.read_text()
    say(sbatch, "exit 1")
    with pytest.raises(SubmitError):
        send_again(plan_again(job.run, None, ["resources.time=9"]))
    assert (job.run.script.read_text(), job.run.config.read_text()) == before
