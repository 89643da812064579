"""`clusterdp stop`: the mark is what stops a run; Slurm is told only what the mark cannot reach."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.operate.change.resume_check import uncancelled
from clusterdp.operate.change.stop import stop
from clusterdp.operate.output.formatting import Colour
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.ending import ending_text
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.status.watch import summary
from clusterdp.rundir import read_events
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


def test_stop_of_an_entry_run_writes_a_mark_without_scancel(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(entry="digits:main").attempt()
    queue.answers("7|RUNNING|None|n1")
    assert stop(builder.run).startswith("runs/digits: job 7 saves at one of its next steps and ends. `clusterdp resume")
    assert builder.run.stop.exists()
    assert not [line for line in queue.asked if line.startswith("scancel")]
    assert [e["job"] for e in read_events(builder.run) if e["event"] == "stop-asked"] == ["7"]


def test_stop_of_a_command_run_sends_sigterm_after_writing_its_mark(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(entry="").attempt()
    queue.answers("7|RUNNING|None|n1")
    queue.write("scancel", f"[ -e {builder.run.stop} ] || echo too early >>{queue.folder}/asked\n")
    stop(builder.run)
    assert "scancel --signal=TERM 7" in queue.asked
    assert "too early" not in queue.asked


def test_stop_of_a_command_run_without_squeue_writes_its_mark_and_fails(
    builder: RunBuilder, queue: FakeQueue, tmp_path: Path
) -> None:
    (tmp_path / "fake").mkdir()
    builder.submitted(entry="", cluster=str(tmp_path / "fake")).attempt()
    with pytest.raises(RunError, match=r"no squeue here that knows its cluster .* its program was not told"):
        stop(builder.run)
    assert builder.run.stop.exists()
    assert queue.asked == []


def test_stop_cancels_a_waiting_job_and_records_the_run_as_stopped(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(entry="digits:main").attempt().stopped(120).requeued("preempted")
    queue.answers("7|PENDING|BeginTime|")
    assert "job 7 has left the queue" in stop(builder.run)
    assert "scancel 7" in queue.asked
    history = read_history(builder.run)
    assert (history.state, history.why) == (RunState.STOPPED, "the last attempt had ended before: preempted")


def test_stop_leaves_a_finished_run_unmarked(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().finished()
    assert stop(builder.run) == "runs/digits: is over already (done); nothing to stop."
    assert not builder.run.stop.exists()


@pytest.mark.parametrize("name", ["clusterdp stop", "job.stop: the loss has diverged"])
def test_ending_of_a_stopped_attempt_names_the_source_of_the_stop(builder: RunBuilder, name: str) -> None:
    attempt = builder.submitted(entry="digits:main").attempt()
    attempt._rank0("signal", name=name, step=119)
    attempt.saved(120).outcome("stop user 120")
    assert ending_text(read_history(builder.run).attempts[0]) == f"stopped by {name} at step 120, saved"
    attempt.failed("stopped", reason="user", exit=75)
    history = read_history(builder.run)
    assert (history.state, history.why) == (RunState.STOPPED, name)
    assert ending_text(history.attempts[0]) == f"stopped by {name} at step 120, saved"
    told = summary(history, current_status(history), Colour(StringIO()))
    assert not [line for line in told if "the last" in line]  # no log: nothing has failed


def test_stop_mark_is_removed_by_a_resume_and_restored_if_it_fails(builder: RunBuilder) -> None:
    builder.submitted()
    builder.run.stop.write_text("mark")
    with pytest.raises(RuntimeError), uncancelled(builder.run):
        raise RuntimeError
    assert builder.run.stop.read_text() == "mark"
    with uncancelled(builder.run):
        assert not builder.run.stop.exists()
    assert not builder.run.stop.exists()
