"""Job, the handle for Python code: what it tells Slurm, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.rundir import Ledger, RunDir, read_events
from clusterdp.submission.job import Job
from tests.submission.conftest import Stubs


@pytest.fixture
def job(tmp_path: Path, stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("PATH", str(stubs.folder), prepend=":")
    monkeypatch.setenv("STUBS", str(stubs.folder))
    scancel = stubs.folder / "scancel"
    scancel.write_text(
        f'#!/bin/bash\necho "$1 marked=$([ -e {tmp_path}/run/cancelled ] && echo yes)" >>$STUBS/scancel.calls\n'
    )
    scancel.chmod(0o755)
    run = RunDir(tmp_path / "run")
    Ledger(run, "submit-7", "submit").write("submitted", job="7")
    return Job("7", run)


def test_job_cancel_marks_the_run_cancelled_before_calling_scancel(job: Job, stubs: Stubs) -> None:
    """A scancel alone is a TERM that looks like a preemption: the job would come back."""
    Ledger(job.run, "7.0", "batch").write("submitted", job="9")  # it was resubmitted
    job.cancel()
    job.cancel()
    assert stubs.calls("scancel") == ["9 marked=yes", "9 marked=yes"]
    assert [event["job"] for event in read_events(job.run) if event["event"] == "cancelled"] == ["9"]


def test_job_cancel_unable_to_mark_the_run_fails_without_calling_scancel(job: Job, stubs: Stubs) -> None:
    gone = Job("7", RunDir(job.run.path / "gone"))
    with pytest.raises(RunError, match="the job would come back"):
        gone.cancel()
    assert stubs.calls("scancel") == []


def test_finished_job_requeued_by_slurm_has_state_completed(job: Job, stubs: Stubs) -> None:
    """Slurm 24.05 to 25.11 do that to one that was preempted before; the attempt that follows ends at once."""

    def slurm_says(state: str, of: str = "7") -> None:
        (stubs.folder / "squeue").write_text(f"#!/bin/bash\necho '{of}|{state}|None|'\n")

    slurm_says("PENDING")
    assert job.state == "PENDING"
    Ledger(job.run, "7.0", "rank0").write("finished", step=9)
    assert job.state == "PENDING"  # the ranks' word: the batch script may find a crash after it
    Ledger(job.run, "7.0", "batch").write("finished", cause="done")
    for state in ("PENDING", "COMPLETED", "FAILED"):
        slurm_says(state)
        assert job.wait(timeout_s=0) == "COMPLETED"
    slurm_says("RUNNING")
    assert job.state == "RUNNING"
    Ledger(job.run, "submit-8", "submit").write("submitted", job="8")  # resumed
    slurm_says("PENDING", of="8")
    assert job.state == "PENDING"
