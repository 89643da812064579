"""Under submitit rank 0 asks for the requeue; it looks as the batch script does."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.launch.submitit import Task
from tests.launch.conftest import Stubs


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
def test_only_a_job_that_is_its_own_is_requeued(
    may_requeue: Task, stubs: Stubs, state: str, reason: str, restarts: int, expected: bool
) -> None:
    stubs.answer(state, reason, restarts=restarts)
    assert may_requeue._may_requeue() is expected


def test_of_an_array_its_own_element_is_looked_at(
    may_requeue: Task, stubs: Stubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CLUSTERDP_ATTEMPT", "7_2.1")
    may_requeue._may_requeue()
    assert stubs.calls("scontrol") == ["--oneliner show job 7_2"]


def test_a_silent_controller_is_left_to_the_batch_script(
    may_requeue: Task, stubs: Stubs, capfd: pytest.CaptureFixture[str]
) -> None:
    stubs.on("scontrol", 'echo "Unable to contact slurm controller" >&2; exit 1')
    assert may_requeue._may_requeue() is False
    assert "Unable to contact slurm controller" in capfd.readouterr().err
