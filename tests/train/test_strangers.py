"""A rank that does not see what its job gives it, and a process that is none of the job's: neither trains alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.train import settings
from tests.train.runs import Run
from tests.train.test_own_job import SCRIPT
from tests.train.test_worker import environ, finish, worker


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """The run folder of job 7, which runs."""
    run = Run(tmp_path / "run", "tests.train.jobs:train")
    run.attempt("6.0")
    run.attempt("7.0")
    (run.dir.attempt("7.0").path / "began").write_text("1 2026-01-01T00:00:00 0 n1\n")
    (tmp_path / "run/code/deep").mkdir(parents=True)
    return run


@pytest.mark.parametrize("kept", [{}, {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}])
def test_rank_without_the_variables_of_its_job_ends(run: Run, kept: dict[str, str]) -> None:
    code, output = finish(worker(run), environ(**kept))
    assert code == 4
    assert output.startswith(f"clusterdp: error: {run.path} belongs to job 7, whose variables this process has not.")
    assert "APPTAINER_CLEANENV" in output
    assert (len(run.dir.attempts()), run.dir.claims.exists()) == (2, False)


def test_rank_with_the_variables_of_another_run_ends(run: Run, tmp_path: Path) -> None:
    other = Run(tmp_path / "other", "")
    code, output = finish(worker(run), environ(**other.attempt("8.0")))
    assert (code, output.startswith(f"clusterdp: error: CLUSTERDP_RUN_DIR is {other.path}")) == (4, True)


def test_own_job_in_the_code_of_a_live_job_ends(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.path / "code/deep")
    code, output = finish([sys.executable, "-c", SCRIPT.format("")], environ())
    assert (code, "belongs to job 7" in output) == (4, True), output


@pytest.mark.parametrize("attempt", [None, "local.1", "7.0"])
@pytest.mark.parametrize("place", ["folder", "code", "sweep", "elsewhere"])
def test_live_job_shares_its_folder_with_no_stranger(
    run: Run, monkeypatch: pytest.MonkeyPatch, attempt: str | None, place: str
) -> None:
    monkeypatch.delenv("CLUSTERDP_ATTEMPT", raising=False)
    if attempt:
        monkeypatch.setenv("CLUSTERDP_ATTEMPT", attempt)
    (run.path.parent / "code").mkdir()
    run.path.rename(run.path.parent / "0")
    run.path = run.path.parent / "0"
    monkeypatch.chdir({"code": run.path / "code", "sweep": run.path.parent / "code"}.get(place, Path("/")))
    folder = run.path if place == "folder" else None
    if place == "elsewhere" or attempt == "7.0":
        settings.check_stranger(folder)
        return
    with pytest.raises(RunError, match="belongs to job 7"):
        settings.check_stranger(folder)
    (run.path / "attempts/7.0/cause").write_text("done\n")
    settings.check_stranger(folder)


def test_folder_without_a_live_job_takes_a_local_attempt(run: Run) -> None:
    os.unlink(run.dir.attempt("7.0").path / "began")
    assert run.dir.live_job() == ""
