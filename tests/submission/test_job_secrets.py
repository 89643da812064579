"""A secret reaches the program, and no file of the run folder; config and script are for their owner alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import clusterdp
from clusterdp import config
from clusterdp.errors import ConfigError
from clusterdp.submission.plan import make_plan
from clusterdp.submission.render.job_secrets import secret_paths
from clusterdp.submission.snapshot.code_snapshot import take
from tests.submission.conftest import RunScript, Stubs, cause
from tests.submission.test_hostile_configs import TELL

VALUE = "a\"b'c $HOME `id` \\ *\nsecond line"
COMMAND = [sys.executable, "-c", TELL]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "it's a file"
    path.write_text(VALUE + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def told(tmp_path: Path) -> dict[str, str]:
    return dict(json.loads((tmp_path / "told").read_text())[1])


def test_each_attempt_reads_secret_files_anew_without_storing_their_values(
    run_script: RunScript, tmp_path: Path, file: Path
) -> None:
    values = {"command": COMMAND, "launch": {"secret_files": {"WANDB_API_KEY": str(file)}}}
    for restart, value in enumerate((VALUE, "renewed")):
        file.write_text(value + "\n")
        done = run_script(values, restart=restart, TELL=str(tmp_path / "told"))
        assert done.returncode == 0, done.stderr
        assert told(tmp_path)["WANDB_API_KEY"] == value
        (tmp_path / "run/attempts" / f"7.{restart}" / "cause").write_text("preempted\n")  # or it would be done
    kept = [path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any("second line" in text or "renewed" in text for text in kept)


ONCE = {"max_crashes": 0}


@pytest.mark.parametrize("content", [None, ""])
def test_start_fails_if_a_secret_file_is_missing_or_empty(
    run_script: RunScript, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "none").touch(0o600)
    launch = {"secret_files": {"KEY": str(tmp_path / "none")}}
    done = run_script({"command": ["touch", "ran"], "launch": launch, "restart": ONCE})
    assert (done.returncode, cause(tmp_path), (tmp_path / "run/code/ran").exists()) == (4, "start", False)
    assert "clusterdp: launch.secret_files.KEY: cannot be read on" in done.stderr


def test_start_fails_if_a_secret_variable_is_missing_from_the_jobs_environment(
    run_script: RunScript, tmp_path: Path
) -> None:
    values = {"command": COMMAND, "launch": {"secrets": ["WANDB_API_KEY"]}}
    assert run_script(values, TELL=str(tmp_path / "told"), WANDB_API_KEY=VALUE).returncode == 0
    assert told(tmp_path)["WANDB_API_KEY"] == VALUE
    done = run_script({**values, "restart": ONCE}, job=8, TELL=str(tmp_path / "told"))
    assert (done.returncode, cause(tmp_path, "8.0")) == (4, "start")
    assert "WANDB_API_KEY is not set in the job" in done.stderr
    assert "Use launch.secret_files." in done.stderr


def refused(**launch: object) -> str:
    with pytest.raises(ConfigError) as error:
        make_plan(config.from_mapping({"command": "true", "launch": launch}))
    return str(error.value)


def test_submit_refuses_missing_secrets_and_secret_files_open_to_others(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert refused(secrets=["WANDB_API_KEY"]) == (
        "launch.secrets: WANDB_API_KEY is not set here. Export it, and submit again."
    )
    assert "No such file" in refused(secret_files={"KEY": str(tmp_path / "none")})
    assert "is not a file" in refused(secret_files={"KEY": str(tmp_path)})
    assert "is a variable that the script sets itself" in refused(secret_files={"MASTER_ADDR": str(file)})
    file.chmod(0o640)
    assert "others can read or write" in refused(secret_files={"KEY": str(file)})


def test_webhook_file_is_refused_if_invalid_group_readable_or_beside_a_command(file: Path) -> None:
    def said(**notify: object) -> str:
        with pytest.raises(ConfigError) as error:
            make_plan(config.from_mapping({"command": "true", "notify": {"webhook_file": str(file), **notify}}))
        return str(error.value)

    assert said() == f"notify.webhook_file: {file} has no address. Write it there alone: https://..."
    file.chmod(0o640)
    assert said() == f"notify.webhook_file: others can read or write {file}. `chmod 600` it."
    make_plan(config.from_mapping({"command": "true", "notify": {"webhook_file": str(file), "on": []}}))
    both = said(command=["mail"])
    assert both.endswith("one of webhook_file and command tells people. Keep one: a command may call curl, too.")


def test_secret_file_in_the_source_folder_is_excluded_from_the_code_snapshot(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("train.py", "key"):
        (source / name).write_text("x")
    (tmp_path / "link").symlink_to(source)
    loaded = config.from_mapping({"command": "true", "launch": {"secret_files": {"KEY": f"{tmp_path}/link/key"}}})
    take(source, tmp_path / "code", loaded.snapshot, tmp_path / "run", secret_paths(loaded))
    assert os.listdir(tmp_path / "code") == ["train.py"]


@pytest.mark.parametrize(
    "launch",
    [
        {"secrets": ["A=1"]},
        {"secret_files": {"A;id": "/x"}},
        {"secrets": ["A"], "env": {"A": "1"}},
        {"secrets": ["A"], "secret_files": {"A": "/x"}},
    ],
)
def test_invalid_or_duplicate_secret_names_are_refused(launch: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"launch\.secret"):
        config.from_mapping({"command": "true", "launch": launch})


@pytest.mark.parametrize("backend", ["sbatch", "submitit"])
def test_run_config_and_batch_script_have_mode_0600_under_any_umask(
    backend: str, umask: int, stubs: Stubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (stubs.folder / "sbatch").write_text(
        f"#!/bin/bash\numask >{tmp_path}/umask\necho Submitted batch job 41\n"
        if backend == "submitit"
        else f"#!/bin/bash\numask >{tmp_path}/umask\necho 41\n"
    )
    monkeypatch.setenv("PATH", f"{stubs.folder}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("def main(job): ...\n")
    values = {"entry": "train:main", "backend": backend, "resources": {"time": 5}, "snapshot": {"link": ["stubs"]}}
    run = clusterdp.submit({**values, "run_dir": "run"}).run
    assert int((tmp_path / "umask").read_text(), 8) == umask
    files = [run.config, run.script, *run.path.glob("submitit/*.sh")]
    assert len(files) == (4 if backend == "submitit" else 2)
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert run.events.stat().st_mode & 0o777 == 0o777 & ~umask
    assert {path.stat().st_mode & 0o777 for path in run.events.iterdir()} == {0o666 & ~umask}
