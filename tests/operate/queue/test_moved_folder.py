"""A copied run folder is not the run: its job is another folder's. A folder that was moved in mid-run is reported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.operate.change.cancel import cancel
from clusterdp.operate.change.remove import check_over
from clusterdp.operate.change.resume_check import check_resumable
from clusterdp.operate.change.stop import stop
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.watch import watch
from clusterdp.rundir import RunDir, append_line
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


@pytest.fixture
def copy(builder: RunBuilder, queue: FakeQueue) -> RunDir:
    builder.submitted(folder=str(builder.run.path)).attempt()
    queue.answers("7|RUNNING|None|n1")
    there = builder.run.path.with_name("copy")
    shutil.copytree(builder.run.path, there)
    return RunDir(there)


@pytest.mark.parametrize("verb", [cancel, stop, watch, check_over, check_resumable])
def test_cancel_stop_watch_rm_and_resume_refuse_a_copied_run_folder(
    verb: Callable[[RunDir], object], copy: RunDir, queue: FakeQueue
) -> None:
    with pytest.raises(RunError, match=r"runs/copy: is a copy of runs/digits, and job 7 is that one's\. Name runs/dig"):
        verb(copy)
    assert "scancel" not in queue.asked
    assert not copy.cancelled.exists()
    assert not copy.stop.exists()


def test_original_run_folder_of_a_copy_can_be_cancelled(copy: RunDir, builder: RunBuilder) -> None:
    assert "cancelled job 7" in cancel(builder.run)


def test_status_of_a_copied_run_folder_names_the_original(copy: RunDir) -> None:
    assert current_status(read_history(copy)).why == "as it was copied; the job is that of runs/digits"


def test_symbolic_link_to_a_run_folder_is_not_taken_for_a_copy(copy: RunDir, builder: RunBuilder) -> None:
    link = builder.run.path.with_name("link")
    link.symlink_to(builder.run.path)
    assert "cancelled job 7" in cancel(RunDir(link))


def test_cancel_of_a_resumed_copy_cancels_the_job_of_the_copy(copy: RunDir, queue: FakeQueue) -> None:
    resumed = {"time": 2e9, "event": "submitted", "attempt": "submit-8", "job": "8", "folder": str(copy.path)}
    append_line(copy.events / "submit-8-submit.jsonl", resumed)
    queue.answers("7|COMPLETED|None|n1", "8|RUNNING|None|n1")
    assert "cancelled job 8" in cancel(copy)


def test_run_folder_moved_while_running_is_reported_and_can_be_cancelled(
    copy: RunDir, builder: RunBuilder, tmp_path: Path
) -> None:
    shutil.rmtree(builder.run.path)
    status = current_status(read_history(copy))
    assert status.state.value == "running"
    assert status.why.startswith(f"its folder was moved here from {builder.run.path}, where the job looks for it")
    assert "cancelled job 7" in cancel(copy)
