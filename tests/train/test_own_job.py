"""own_job(): a script that is its own worker says what is wrong in a line, and Slurm does not try it again in vain."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.torch_version import quiet_gloo
from tests.train.runs import Run
from tests.train.test_worker import environ, finish

pytestmark = pytest.mark.usefixtures("forks")

SCRIPT = """
import atexit
from clusterdp.errors import ConfigError
from clusterdp.train import own_job
job = own_job()
atexit.register(print, "the script's own end")
{}
"""
MISTAKE = 'raise ConfigError("lr: is odd. Make it even.")'


def script(run: Run, last: str = MISTAKE, **more: str) -> tuple[int, str]:
    return finish([sys.executable, "-c", SCRIPT.format(last)], environ(**{"CLUSTERDP_RUN_DIR": str(run.path), **more}))


@quiet_gloo
@pytest.mark.parametrize(
    ("last", "said"),
    [
        (MISTAKE, "lr: is odd. Make it even."),
        ("raise RuntimeError('InvalidCxxCompiler: none')", "train.compile: there is no C++ compiler here."),
    ],
)
def test_user_mistake_under_own_job_prints_one_line_and_records_outcome_stop(
    tmp_path: Path, last: str, said: str
) -> None:
    run = Run(tmp_path / "run", "")
    code, output = script(run, last, **run.attempt("7.0"))
    first, line, end = output.splitlines()
    assert code == 2
    assert first.startswith("clusterdp: rank 0 of 1 on ")
    assert line.startswith(f"clusterdp: {said}")
    assert end == "the script's own end"
    assert run.outcome("7.0") == "stop entry 0"


@quiet_gloo
def test_lost_claim_under_own_job_records_outcome_overtaken(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "")
    lost = "from clusterdp.checkpoint.errors import ClaimLost; raise ClaimLost('claims: another attempt has the run.')"
    code, output = script(run, lost, **run.attempt("7.0"))
    assert code == 5
    assert output.splitlines()[1] == "clusterdp: claims: another attempt has the run."
    assert run.outcome("7.0") == "overtaken claim 0"


def test_job_stop_under_own_job_exits_75_without_requeue(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "")
    asks = "job.stop('enough')\nfor _ in job.loop([1] * 100, {}): pass"
    code, output = script(run, asks, **run.attempt("7.0"))
    assert code == 75, output
    assert str(run.outcome("7.0")).startswith("stop user ")


def test_unexpected_exception_under_own_job_keeps_its_python_traceback(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "")
    code, output = script(run, "1 / 0", **run.attempt("7.0"))
    assert code == 1
    assert "ZeroDivisionError: division by zero" in output
    assert run.outcome("7.0") is None


def test_bad_number_of_a_launcher_is_a_one_line_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "")
    found, output = script(run, **{**run.attempt("7.0"), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "x"})
    assert (found, output.count("\n")) == (2, 1)
    assert "LOCAL_WORLD_SIZE: 'x' is not a number" in output


@quiet_gloo
@pytest.mark.parametrize(
    ("name", "text", "code", "outcome", "said"),
    [
        ("config.yaml", "train: {seed: 1", 2, "stop entry 0", "config.yaml:2: is not the config of a run. Put"),
        pytest.param(
            "config.yaml",
            "train: {backend: ncll}",
            2,
            "stop entry 0",
            "train.backend: 'ncll' is not known to torch.",
            marks=pytest.mark.slow,
        ),
        ("claims", "", 4, None, "claims: cannot be claimed: File exists. Make the run folder writable."),
    ],
)
def test_invalid_run_folder_under_own_job_is_a_one_line_error(
    tmp_path: Path, name: str, text: str, code: int, outcome: str | None, said: str
) -> None:
    run = Run(tmp_path / "run", "")
    (run.path / name).write_text(text)
    found, output = script(run, **run.attempt("7.0"))
    assert found == code
    assert said in output
    assert output.count("\n") == 1
    assert run.outcome("7.0") == outcome
