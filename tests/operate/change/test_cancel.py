"""scancel alone looks like a preemption to the ranks: only the marker, written first, makes a cancel final."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.change.cancel import cancel
from clusterdp.operate.change.stop import stop
from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.status.show_status import as_text
from clusterdp.rundir import mark_cancelled, read_events
from tests.operate.builder import RunBuilder
from tests.operate.conftest import HEADER, FakeQueue


def test_cancel_writes_the_cancelled_marker_before_calling_scancel(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")
    queue.write("scancel", f"[ -e {builder.run.cancelled} ] || echo too early >>{queue.folder}/asked\n")
    text = cancel(builder.run)
    assert "scancel 7" in queue.asked
    assert "too early" not in queue.asked
    assert text.startswith("runs/digits: cancelled job 7;")
    assert [e["job"] for e in read_events(builder.run) if e["event"] == "cancelled"] == ["7"]


def test_cancel_calls_scancel_for_every_live_job_of_the_run(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted("7").attempt("7.0").failed()
    builder.submitted("8").submitted("9")
    queue.answers("7|FAILED|None|", "8|RUNNING|None|n1", "9|PENDING|Dependency|")
    cancel(builder.run)
    assert [line for line in queue.asked if line.startswith("scancel")] == ["scancel 8", "scancel 9"]


def test_cancel_also_cancels_a_job_resubmitted_meanwhile(builder: RunBuilder, queue: FakeQueue) -> None:
    """A batch script that had not seen the marker yet may resubmit itself."""
    builder.submitted("7").attempt("7.0")
    event = '{"time":1800000000,"event":"submitted","attempt":"7.0","job":"8"}'
    queue.write("scancel", f"echo '{event}' >>{builder.run.events}/7.0-batch.jsonl\n")
    new = "case $* in *--jobs=7,8*) echo '8|PENDING|Dependency|' ;; esac\n"
    queue.write("squeue", f"{HEADER}\necho '7|RUNNING|None|n1'\n{new}")
    cancel(builder.run)
    assert [line for line in queue.asked if line.startswith("scancel")] == ["scancel 7", "scancel 8"]


def test_second_cancel_keeps_the_first_marker(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted()
    queue.answers("7|PENDING|Resources|")
    cancel(builder.run)
    marker = builder.run.cancelled.read_text()
    queue.answers("7|CANCELLED|None|")
    assert "was cancelled already" in cancel(builder.run)
    assert builder.run.cancelled.read_text() == marker
    assert len([e for e in read_events(builder.run) if e["event"] == "cancelled"]) == 1


def test_second_cancel_retries_a_failed_scancel(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")
    queue.write("scancel", "echo 'slurm_kill_job: Unable to contact slurm controller' >&2; exit 1\n")
    with pytest.raises(SlurmError, match="Unable to contact"):
        cancel(builder.run)
    queue.write("scancel", "")
    assert "cancelled job 7" in cancel(builder.run)


def test_cancel_leaves_a_finished_run_unchanged(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().finished()
    assert "is over already (done)" in cancel(builder.run)
    assert not builder.run.cancelled.exists()
    assert read_history(builder.run).state is RunState.DONE


def test_cancel_cancels_the_requeued_job_of_a_failed_run(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().failed()
    queue.answers("7|PENDING|BeginTime|")
    assert "cancelled job 7" in cancel(builder.run)


def test_cancel_with_an_unreachable_controller_keeps_the_marker_and_names_the_remedy(
    builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted()
    queue.answers(error="Unable to contact slurm controller")
    queue.write("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1\n")
    again = r"Job 7 may still run: `clusterdp cancel runs/digits` again, or `scancel 7`\."
    with pytest.raises(SlurmError, match=rf"Unable to contact.*marked as cancelled.* {again}"):
        cancel(builder.run)
    assert builder.run.cancelled.exists()


def test_cancel_with_a_failing_squeue_cancels_recorded_unfinished_jobs(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted("7").attempt("7.0").failed()
    builder.submitted("8").submitted("9")
    queue.answers(error="Unable to contact slurm controller")
    assert cancel(builder.run).startswith("runs/digits: told Slurm to cancel job 8, 9, though squeue did not answer; ")
    assert [line for line in queue.asked if line.startswith("scancel")] == ["scancel 8", "scancel 9"]


def test_run_with_a_failed_scancel_stays_waiting_and_status_offers_cancel_again(
    builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted()
    queue.answers("7|PENDING|Priority|")
    queue.write("scancel", "exit 1\n")
    with pytest.raises(SlurmError):
        cancel(builder.run)
    status = current_status(read_history(builder.run))
    assert status.state is RunState.WAITING
    *_, words = as_text(read_history(builder.run), status, builder.now, Colour(io.StringIO()))[0].partition("; ")
    assert words == "marked as cancelled, but Slurm was not told: `clusterdp cancel runs/digits` again"
    queue.write("scancel", "exit 0\n")
    cancel(builder.run)
    assert current_status(read_history(builder.run)).state is RunState.CANCELLED


def test_cancelled_marker_error_names_no_job_if_none_is_known(builder: RunBuilder) -> None:
    (builder.run.path / f".cancelled.{os.getpid()}").mkdir()
    with pytest.raises(RunError, match=r"cannot be written.* and try again\.$"):
        mark_cancelled(builder.run, None)


def test_cancel_unable_to_write_its_marker_calls_no_scancel(builder: RunBuilder, queue: FakeQueue) -> None:
    """A scancel without the marker would look like a preemption."""
    builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")
    (builder.run.path / f".cancelled.{os.getpid()}").mkdir()  # root writes everywhere, but not into a folder
    with pytest.raises(RunError, match="cannot be written"):
        cancel(builder.run)
    assert not any(line.startswith("scancel") for line in queue.asked)


def test_cancel_refuses_a_run_of_another_cluster(elsewhere: Path, queue: FakeQueue, tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    builder = RunBuilder(elsewhere / "r").submitted("3", cluster=str(tmp_path / "fake"))
    with pytest.raises(RunError, match="no squeue here that knows its cluster"):
        cancel(builder.run)
    assert queue.asked == []


@pytest.mark.parametrize(
    ("script", "name", "is_ours"),
    [
        ("{run}/job.sbatch", "renamed", True),
        ("{link}/job.sbatch", "renamed", True),
        ("/tmp/copy.sh", "digits", True),  # a site's sbatch has sent a copy
        ("(null)", "digits", True),
        ("(null)", "wrap", False),
        ("bash", "interactive", False),
        ("/home/me/other.sh", "other", False),
        ("{run}-2/job.sbatch", "digits", False),  # another run of the same name
    ],
)
def test_cancel_and_stop_leave_a_job_of_others_alone(
    builder: RunBuilder, queue: FakeQueue, tmp_path: Path, script: str, name: str, is_ours: bool
) -> None:
    """Its number was given again, or Slurm was set up anew."""
    builder.submitted(entry="").attempt()
    RunBuilder(Path(f"{builder.run.path}-2"))
    (tmp_path / "link").symlink_to(builder.run.path)
    script = script.format(run=builder.run.path, link=tmp_path / "link")
    queue.answers(f"7|RUNNING|None|n1\t{script}\t{name}")
    said = [stop(builder.run), cancel(builder.run)]
    asked = [line for line in queue.asked if line.startswith("scancel")]
    assert asked == (["scancel --signal=TERM 7", "scancel 7"] if is_ours else [])
    assert [f"; job 7 is now {name} ({script}), which is left alone. " in line for line in said] == [not is_ours] * 2
