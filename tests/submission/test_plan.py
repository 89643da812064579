"""From a plan to a job: a dry run writes nothing, and a submission that fails leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clusterdp
from clusterdp import config
from clusterdp.cli.command_line import main
from clusterdp.errors import ConfigError, RunError, SubmitError
from clusterdp.rundir import RunDir
from clusterdp.submission.job import Job
from clusterdp.submission.plan import Plan, make_plan
from clusterdp.submission.resume import plan_again, send_again
from clusterdp.submission.send.lock import RunLock
from clusterdp.submission.snapshot.code_snapshot import CodeSnapshot, list_files


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


def send_anew(plan: Plan) -> Job:
    with RunLock(plan.run) as lock:
        return send_again(plan, lock)


def test_submit_returns_a_job_with_its_run_folder(sbatch: Path) -> None:
    job = clusterdp.submit({"entry": "train:main", "run_dir": "deep/run"})
    assert job.id == "41"
    assert job.run.path == Path.cwd() / "deep/run"
    assert job.run.script.read_text().startswith("#!/bin/bash\n")
    assert (job.run.code / "train.py").exists()
    assert config.read_resolved(job.run.config)["entry"] == "train:main"
    assert job.current_id == "41"


def test_submit_dry_run_writes_no_file_and_prints_the_submitted_script(sbatch: Path, tmp_path: Path) -> None:
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
        ("echo 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "connect failure"),
        ("echo Welcome; echo 'sbatch: fatal: no' >&2; exit 1", "It says: sbatch: fatal: no"),
    ],
)
@pytest.mark.parametrize("empty_folder", [False, True])
def test_submit_refused_by_sbatch_raises_its_message_and_leaves_no_new_files(
    sbatch: Path, lines: str, said: str, empty_folder: bool
) -> None:
    say(sbatch, lines)
    if empty_folder:
        Path("deep/run").mkdir(parents=True)
    with pytest.raises(SubmitError, match=said):
        clusterdp.submit({"command": "true", "run_dir": "deep/run"})
    assert Path("deep").exists() == empty_folder
    assert not list(Path().glob("deep/run/*"))


@pytest.mark.parametrize("option", ["--foo=bar", "--foo"])
def test_resources_extra_option_unknown_to_sbatch_is_reported_by_its_config_key(sbatch: Path, option: str) -> None:
    say(sbatch, f"""echo "sbatch: unrecognized option '{option}'" >&2; exit 1""")
    with pytest.raises(SubmitError) as caught:
        clusterdp.submit({"command": "true", "resources": {"extra": {"fo": 1, "foo": "bar"}}})
    assert str(caught.value).startswith("resources.extra.foo: 'bar' is refused by sbatch. Correct it or leave it out.")
    assert f"unrecognized option '{option}'" in str(caught.value)
    assert "job.sbatch" not in str(caught.value)  # which is gone


def test_resume_of_a_run_with_an_unreadable_config_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").mkdir()
    with pytest.raises(RunError, match=r"config\.yaml: cannot be read: Is a directory"):
        plan_again(RunDir(tmp_path), None, [])


def test_missing_sbatch_command_fails_submit_and_leaves_no_run_folder(
    sbatch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SubmitError, match=r"sbatch: not on PATH.*--cluster local"):
        clusterdp.submit({"command": "true", "run_dir": "run"})
    assert not Path("run").exists()


def test_refused_submit_keeps_another_run_created_meanwhile_under_runs(sbatch: Path, tmp_path: Path) -> None:
    """`runs/` was not there when the submit began; while sbatch thought about it, somebody else has submitted, too."""
    say(sbatch, "mkdir -p runs/theirs; echo 7 >runs/theirs/job.sbatch; echo sbatch: error: no >&2; exit 1")
    with pytest.raises(SubmitError):
        clusterdp.submit({"command": "true"})
    assert sorted(os.listdir("runs")) == [".gitignore", "theirs"]
    assert Path("runs/theirs/job.sbatch").exists()


def test_submit_writes_gitignore_only_into_a_newly_created_runs_folder(sbatch: Path) -> None:
    subprocess.run(["git", "init", "-q"], check=True)
    clusterdp.submit({"command": "true"})
    status = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True, check=True).stdout
    assert status == "?? train.py\n"
    Path("runs/.gitignore").unlink()
    clusterdp.submit({"command": "true"})
    clusterdp.submit({"command": "true", "run_dir": "mine/run"})
    assert not Path("runs/.gitignore").exists()
    assert not Path("mine/.gitignore").exists()


def test_code_snapshot_excludes_its_own_run_folder(sbatch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def take(source: Path, target: Path, limits: object, leave_out: Path, secrets: list[str]) -> CodeSnapshot:
        (target / "pkg").mkdir(parents=True)
        (target / "pkg/old.py").write_text("")
        assert [name for name, _ in list_files(source)] == ["train.py"]
        return CodeSnapshot(0, 0, 0)

    monkeypatch.setattr("clusterdp.submission.snapshot.code_snapshot.take", take)
    clusterdp.submit({"command": "true", "run_dir": "run"})


def test_resume_with_a_lost_run_lock_calls_no_sbatch(sbatch: Path) -> None:
    job = clusterdp.submit({"command": "true", "run_dir": "run"})
    say(sbatch, "touch sent; echo 42")
    with RunLock(job.run) as lock:
        (job.run.submits / "000009").write_text('{"pid": 7}')
        with pytest.raises(RunError, match="process 7 on"):
            send_again(plan_again(job.run, None, []), lock)
    assert not Path("sent").exists()


def test_resume_writes_script_and_config_as_new_files_not_in_place(sbatch: Path) -> None:
    job = clusterdp.submit({"command": "true", "run_dir": "run"})
    with job.run.script.open() as script, job.run.config.open() as values:
        send_anew(plan_again(job.run, None, ["resources.time=9"]))
        assert "--time=9" not in script.read()
        assert "time: '9'" not in values.read()
    assert "--time=9" in job.run.script.read_text()


def test_submit_refuses_a_used_and_an_unwritable_run_folder(sbatch: Path) -> None:
    clusterdp.submit({"command": "true", "run_dir": "run"})
    with pytest.raises(RunError, match="holds a run already"):
        clusterdp.submit({"command": "true", "run_dir": "run"})
    with pytest.raises(RunError, match="cannot be written"):
        clusterdp.submit({"command": "true", "run_dir": "train.py/run"})


def test_runs_of_the_same_second_have_different_folders(sbatch: Path) -> None:
    c = config.from_mapping({"name": "a/b c", "command": "true"})
    paths = {make_plan(c).run.path for _ in range(20)}
    assert len(paths) == 20
    assert all(path.parent == Path.cwd() / "runs" and path.name.startswith("a-b-c-") for path in paths)


def test_resume_keeps_the_config_except_for_overrides(sbatch: Path) -> None:
    job = clusterdp.submit({"script": "echo \\${HOME}", "run_dir": "run", "params": {"lr": 1, "x": 2}})
    say(sbatch, "echo 42")
    plan = plan_again(job.run, 30, ["params.lr=5", "resources.time=9"])
    assert plan.spec.config.params == {"lr": 5, "x": 2}
    assert "#SBATCH --time=9" in plan.script.text
    assert "echo ${HOME}" in plan.script.text
    assert plan.script.rules["from_step"] == 30
    assert send_anew(plan).id == "42"
    assert job.current_id == "42"


def test_resume_with_params_of_a_wrong_type_is_refused(sbatch: Path) -> None:
    Path("train.py").write_text("def main(job, lr: float): ...\n")
    job = clusterdp.submit({"entry": "train:main", "run_dir": "run", "params": {"lr": 1}})
    with pytest.raises(ConfigError, match=r"params\.lr: 'abc' is not of type float"):
        plan_again(job.run, None, ["params.lr=abc"])


def test_failed_resume_restores_the_old_script_and_config(sbatch: Path) -> None:
    job = clusterdp.submit({"command": "true", "run_dir": "run"})
    before = job.run.script.read_text(), job.run.config.read_text()
    say(sbatch, "echo sbatch: error: no >&2; exit 1")
    with pytest.raises(SubmitError):
        send_anew(plan_again(job.run, None, ["resources.time=9"]))
    assert (job.run.script.read_text(), job.run.config.read_text()) == before


def test_variables_of_sbatch_count_if_the_config_has_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"ACCOUNT": "nlp", "PARTITION": "gpu", "TIMELIMIT": "9", "SIGNAL": "USR1"}.items():
        monkeypatch.setenv(f"SBATCH_{name}", value)
    for values in ({}, {"sweep": {"grid": {"params.lr": [1, 2]}}}):
        words = {"command": "echo ${params.lr}", "params": {"lr": 0}, "resources": {"partition": "cpu"}, **values}
        Path("c.yaml").write_text(json.dumps(words))
        assert main(["submit", "c.yaml", "--dry-run"]) == 0
        said = capsys.readouterr()
        directives = [line for line in said.out.splitlines() if re.match("#SBATCH --(account|partition|time)=", line)]
        assert directives == ["#SBATCH --partition=cpu", "#SBATCH --account=nlp", "#SBATCH --time=9"]
        assert "clusterdp: SBATCH_SIGNAL: no effect on this job. " in said.err
