"""`clusterdp resume`, as it is typed: twice at once, and of a run that has nothing left to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clusterdp
from clusterdp import cli
from clusterdp.rundir import Ledger, RunDir

SBATCH = """#!/bin/bash
# The id of a new job, which then waits in the queue.
until mkdir "$QUEUE/$((++id))" 2>/dev/null; do :; done
echo "$id|PENDING|${@: -1}" >"$QUEUE/$id/row"
echo $id
"""
# In either format: with a job's script, or with the reason that it waits and its nodes.
SQUEUE = """#!/bin/bash
if [[ $* == *%r* ]]; then echo 'JOBID|STATE|REASON|NODELIST'; else echo 'ARRAY_JOB_ID|STATE|COMMAND'; fi
cat "$QUEUE"/*/row 2>/dev/null | if [[ $* == *%r* ]]; then sed 's/[^|]*$/|/'; else cat; fi
"""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one folder for each job that was submitted."""
    for name in ("bin", "queue", "work"):
        (tmp_path / name).mkdir()
    for name, lines in {"sbatch": SBATCH, "squeue": SQUEUE}.items():
        (tmp_path / "bin" / name).write_text(lines)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.chdir(tmp_path / "work")
    Path("train.py").write_text("def main(job, epochs=1): ...\n")
    return tmp_path / "queue"


def submitted(**more: object) -> RunDir:
    return clusterdp.submit({"run_dir": "run", **more}).run


def finished(queue: Path, run: RunDir) -> None:
    """The job of the run has come to its end, and Slurm has forgotten it."""
    (queue / "1/row").unlink()
    run.attempt("1.0").logs.mkdir(parents=True)
    run.attempt("1.0").cause.write_text("done\n")
    Ledger(run, "1.0", "rank0").write("finished", step=88)
    Ledger(run, "1.0", "batch").write("finished", cause="done")


def test_simultaneous_resumes_submit_one_job_and_the_rest_exit_4(queue: Path) -> None:
    run = submitted(command="true")
    (queue / "1/row").unlink()
    command = [sys.executable, "-m", "clusterdp", "resume", str(run.path), "--cluster=slurm", "resources.time=9"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    racers = [subprocess.Popen(command, text=True, **pipes) for _ in range(3)]
    said = [racer.communicate() for racer in racers]
    assert sorted(os.listdir(queue)) == ["1", "2"]
    assert sorted(racer.returncode for racer in racers) == [0, 4, 4], said
    for racer, (_, error) in zip(racers, said, strict=True):
        lost = "has been submitting a job of it since" in error or "job 2 is PENDING" in error
        assert lost == (racer.returncode == 4), error
        assert len(error.splitlines()) == lost, error
    assert "--time=9" in run.script.read_text()


def test_resume_of_a_finished_entry_run_submits_only_with_more_epochs(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(entry="train:main", params={"epochs": 2})
    finished(queue, run)
    for words in ([], ["resources.time=9"], ["params.epochs=2"]):
        capsys.readouterr()
        assert cli.main(["resume", "run", "--cluster=slurm", *words]) == 0
        said = capsys.readouterr().out
        assert said == "run: is done at step 88; nothing is left. To train on, raise what ends it: params.epochs=...\n"
    assert os.listdir(queue) == ["1"]
    assert cli.main(["resume", "run", "--cluster=slurm", "params.epochs=3"]) == 0
    assert sorted(os.listdir(queue)) == ["1", "2"]


def test_resume_of_a_finished_command_run_advises_a_new_run(queue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = submitted(command="true")
    finished(queue, run)
    capsys.readouterr()
    assert cli.main(["resume", "run", "--cluster=slurm", "params.x=1"]) == 0
    assert capsys.readouterr().out == "run: this run is done. Submit a new one.\n"
    assert os.listdir(queue) == ["1"]
    assert cli.main(["resume", "run", "--cluster=slurm", "launch.env.EPOCHS=3"]) == 0
    assert sorted(os.listdir(queue)) == ["1", "2"]


@pytest.mark.parametrize("verb", ["resume", "again"])
def test_resume_and_again_name_the_file_with_an_unknown_config_key(
    verb: str, queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = submitted(command="true")
    run.config.write_text(run.config.read_text() + "futurekey: 1\n")
    capsys.readouterr()
    assert cli.main([verb, "run", "--cluster=slurm"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"clusterdp: {run.config}: futurekey: there is no such key.")
    assert said.endswith(" A newer clusterdp may have written the file.\n")


def test_resume_dry_run_from_a_step_without_checkpoint_is_refused(
    queue: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted(command="true")
    (queue / "1/row").unlink()
    capsys.readouterr()
    assert cli.main(["resume", "run", "--from", "97", "--dry-run"]) == 4
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "clusterdp: --from 97: there is no checkpoint of that step. There is none at all.\n",
    )
    assert cli.main(["resume", "run", "--dry-run"]) == 0
    assert "#SBATCH" in capsys.readouterr().out


def test_resume_names_files_changed_since_the_snapshot(queue: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lib.py").write_text("x = 1\n")
    Path("gone.py").write_text("")
    submitted(entry="train:main", params={"epochs": 2})
    for words, expected in (([], ""), (["edited"], "It runs the code as it was at its submit; gone.py, lib.py have")):
        if words:
            Path("lib.py").write_text("x = 2\n")
            Path("gone.py").unlink()
        for row in queue.glob("*/row"):
            row.unlink()
        capsys.readouterr()
        assert cli.main(["resume", "run", "--cluster=slurm"]) == 0
        said = capsys.readouterr().out
        assert said.startswith(expected or "Resumed job")
        assert ("`clusterdp submit` makes a new run of the code as it is now." in said) is bool(words)
