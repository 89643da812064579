"""Under submitit rank 0 asks for the requeue; it looks as the batch script does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterdp import config
from clusterdp.submission.plan import make_plan
from clusterdp.submission.send.submitit import Task
from tests.submission.conftest import Stubs


@pytest.fixture
def may_requeue(tmp_path: Path, stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setenv("PATH", str(stubs.folder), prepend=":")
    monkeypatch.setenv("STUBS", str(stubs.folder))
    monkeypatch.setenv("CLUSTERDP_ATTEMPT", "7.1")
    return Task(str(tmp_path))


@pytest.mark.parametrize(
    ("state", "reason", "restarts", "expected"),
    [
        ("RUNNING", "None", 1, True),
        ("COMPLETING", "TimeLimit", 1, True),
        ("COMPLETING", "None", 1, False),
        ("RUNNING", "None", 2, False),  # a later attempt of the job, while this one lived on on a node that was cut off
    ],
)
def test_submitit_requeues_only_running_or_timed_out_jobs_of_its_own_attempt(
    may_requeue: Task, stubs: Stubs, state: str, reason: str, restarts: int, expected: bool
) -> None:
    stubs.answer(state, reason, restarts=restarts)
    assert may_requeue._may_requeue() is expected


def test_submitit_array_task_queries_scontrol_with_its_own_task_id(
    may_requeue: Task, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CLUSTERDP_ATTEMPT", "7_2.1")
    may_requeue._may_requeue()
    assert stubs.calls("scontrol") == ["--oneliner show job 7_2"]


def test_submitit_does_not_requeue_if_the_slurm_controller_is_unreachable(
    may_requeue: Task, stubs: Stubs, capfd: pytest.CaptureFixture[str]
) -> None:
    stubs.on("scontrol", 'echo "Unable to contact slurm controller" >&2; exit 1')
    assert may_requeue._may_requeue() is False
    assert "Unable to contact slurm controller" in capfd.readouterr().err


def test_sbatch_variables_of_the_submitter_do_not_reach_submitits_sbatch_call(
    tmp_path: Path, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCH_TIMELIMIT would win over the script, and SBATCH_REQUEUE=1 is refused by Slurm 26.05."""
    monkeypatch.setenv("PATH", str(stubs.folder), prepend=":")
    monkeypatch.setenv("STUBS", str(stubs.folder))
    for name in ("SBATCH_REQUEUE", "SLURM_NTASKS", "SLURM_CONF"):
        monkeypatch.setenv(name, "1")
    stubs.on("sbatch", 'env >"$STUBS/env"; echo Submitted batch job 4321; exit 0')
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def main(job): ...\n")
    values = {"backend": "submitit", "entry": "train:main", "resources": {"time": 5}, "run_dir": str(tmp_path / "run")}
    values |= {"snapshot": {"enabled": False}}
    make_plan(config.from_mapping(values)).carry_out()
    seen = {line.partition("=")[0] for line in (stubs.folder / "env").read_text().splitlines()}
    assert seen & {"SBATCH_REQUEUE", "SLURM_NTASKS", "SLURM_CONF"} == {"SLURM_CONF"}
    assert os.environ["SBATCH_REQUEUE"] == "1"
