"""What squeue says is weighed against the run's own records."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterdp.cli import main
from clusterdp.errors import SlurmError
from clusterdp.operate.change.resume_check import check_resumable
from clusterdp.operate.queue.run_status import alive, current_status
from clusterdp.operate.record.ending import ENDED_AS
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.slurm.commands import SqueueRow
from clusterdp.slurm.state import JobState
from tests.operate.builder import RunBuilder, preempted_once
from tests.operate.conftest import FakeQueue


def test_current_status_asks_squeue_once_and_never_for_an_ended_run(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().failed()
    current_status(read_history(builder.run))
    assert queue.asked == []
    builder.submitted("8")
    queue.answers("8|PENDING|Resources|")
    status = current_status(read_history(builder.run))
    assert len(queue.asked) == 1
    assert "7,8" in queue.asked[0]
    assert status.state is RunState.WAITING
    assert status.why.startswith("Resources: next in line")


@pytest.mark.parametrize("reason", ["JobLaunchFailure", "RaisedSignal:9(Killed)"])
def test_killed_batch_script_is_named_as_the_cause_of_a_failed_run(
    builder: RunBuilder, queue: FakeQueue, reason: str
) -> None:
    builder.submitted()
    queue.answers(f"7|FAILED|{reason}|")
    assert "batch script was killed" not in current_status(read_history(builder.run)).why, "it has not begun"
    builder.attempt().stopped(40)
    status = current_status(read_history(builder.run))
    assert (status.state, status.why) == (
        RunState.FAILED,
        "its batch script was killed, and Slurm has ended the ranks",
    )


def test_run_without_a_recorded_end_has_vanished_if_slurm_forgot_its_job(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    status = current_status(read_history(builder.run))
    assert status.state is RunState.VANISHED
    assert "no ending on record" in status.why


@pytest.mark.parametrize("answer", ["7|CANCELLED|None|", "7|FAILED|None|", "8|RUNNING|None|"])
def test_cancel_marker_decides_the_state_of_a_run_with_an_ended_job(
    builder: RunBuilder, queue: FakeQueue, answer: str
) -> None:
    builder.submitted().cancelled().attempt()
    queue.answers(answer)
    status = current_status(read_history(builder.run))
    assert (status.state, status.why) == (RunState.CANCELLED, "")


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", RunState.RUNNING),
        ("COMPLETING", RunState.RUNNING),
        ("CONFIGURING", RunState.RUNNING),
        ("SUSPENDED", RunState.RUNNING),
        ("A_STATE_OF_2030", RunState.RUNNING),
        ("REQUEUE_HOLD", RunState.WAITING),
        ("EXPEDITING", RunState.WAITING),
        ("CANCELLED", RunState.CANCELLED),
        ("OUT_OF_MEMORY", RunState.FAILED),
        ("COMPLETED", RunState.FAILED),  # without a word: a script that ended before it could say why
    ],
)
def test_run_state_follows_the_slurm_state_of_its_job(
    builder: RunBuilder, queue: FakeQueue, word: str, state: RunState
) -> None:
    builder.submitted().attempt()
    queue.answers(f"7|{word}|None|n1")
    assert current_status(read_history(builder.run)).state is state


def test_every_final_slurm_state_has_an_explanation() -> None:
    final = {state.value for state in JobState if state.final}
    assert final - set(ENDED_AS) == {"REVOKED"}  # of federations: the generic words do


def test_unknown_slurm_state_counts_as_alive() -> None:
    assert alive(SqueueRow("A_STATE_OF_2030", "None", ""))
    assert not alive(SqueueRow("CANCELLED", "None", ""))


def test_status_after_a_squeue_error_shows_the_last_recorded_state(elsewhere: Path, queue: FakeQueue) -> None:
    queue.answers(error="slurm_load_jobs error: Unable to contact slurm controller")
    status = current_status(read_history(preempted_once(elsewhere / "r").run))
    assert status.state is RunState.RUNNING
    assert "Unable to contact" in status.why


def test_job_id_of_a_run_is_asked_only_of_its_own_cluster(
    elsewhere: Path, queue: FakeQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "theirs.conf", tmp_path / "ours.conf"
    theirs.touch()
    monkeypatch.setenv("SLURM_CONF", str(ours))
    builder = RunBuilder(elsewhere / "r").submitted("3", cluster=str(theirs))
    assert current_status(read_history(builder.run)).state is RunState.WAITING
    theirs.unlink()
    status = current_status(read_history(builder.run))
    assert (status.state, status.why) == (RunState.VANISHED, "no ending on record, and its cluster is gone")
    assert queue.asked == []
    ours.touch()
    mine = RunBuilder(elsewhere / "s").submitted("3", cluster=str(ours))
    queue.answers("3|RUNNING|None|n1")
    assert current_status(read_history(mine.run)).state is RunState.RUNNING


@pytest.mark.parametrize("said", ["Connection refused", "Connection refused."])
def test_quoted_slurm_error_ends_with_a_single_full_stop(said: str, builder: RunBuilder, queue: FakeQueue) -> None:
    queue.answers(error=said)
    with pytest.raises(SlurmError, match=r"It says: Connection refused\. So it is not known"):
        check_resumable(builder.submitted().run)


def test_status_and_list_report_torn_records_without_a_cluster_name(
    builder: RunBuilder, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/site/slurm.conf")
    builder.submitted(cluster="/site/slurm.conf").attempt().trained(1, 3)
    for path in builder.run.events.iterdir():
        path.write_text(path.read_text()[:20])
    said = "its records do not say on which cluster its job is"
    assert current_status(read_history(builder.run)).why == f"as last recorded; {said}"
    assert main(["list"]) == 0
    assert capsys.readouterr().err == f"clusterdp: runs/digits: {said}. A ? marks what was last recorded.\n"


@pytest.mark.parametrize(
    ("outcome", "host", "pid", "expected"),
    [
        ("done finished 9", "", os.getpid(), ("done", "")),
        ("requeue term 4", "", os.getpid(), ("stopped", "start it again to continue")),
        ("", "", os.getpid(), ("running", "")),
        ("", "", 0, ("vanished", "no ending on record, and its process is gone: it has failed, or was killed")),
        ("", "elsewhere", 0, ("running", "as last recorded, on elsewhere")),
    ],
    ids=["done", "preempted", "running", "killed", "on another host"],
)
def test_status_of_a_run_without_slurm_follows_its_process(
    tmp_path: Path, outcome: str, host: str, pid: int, expected: tuple[str, str]
) -> None:
    if not pid:
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        pid = ended.pid
    builder = RunBuilder(tmp_path / "run")
    builder.now = time.time()  # later than the start of this process
    attempt = builder.run.attempt("local.1700000000123")
    attempt.path.mkdir(parents=True)
    builder.event("started", attempt.name, "rank0", nodes=host or socket.gethostname(), pid=pid)
    if outcome:
        attempt.outcome.write_text(outcome + "\n")
    history = read_history(builder.run)
    status = current_status(history)
    assert (status.state.value, status.why) == expected
    assert history.jobs == ()


def test_process_younger_than_its_run_without_slurm_is_another(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")  # in 2023
    builder.run.attempt("local.1").path.mkdir(parents=True)
    builder.event("started", "local.1", "rank0", nodes=socket.gethostname(), pid=os.getpid())
    assert read_history(builder.run).state is RunState.VANISHED


def test_job_submitted_after_an_attempt_without_slurm_decides_the_state(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.run.attempt("local.1")
    attempt.path.mkdir(parents=True)
    builder.event("started", "local.1", "rank0", nodes="elsewhere", pid=1)
    attempt.outcome.write_text("done finished 9\n")
    assert read_history(builder.run).is_local
    builder.submitted("8")
    queue.answers("8|PENDING|Resources|")
    assert current_status(read_history(builder.run)).state is RunState.WAITING


@pytest.mark.parametrize("verb", ["cancel", "rm"])
def test_running_run_without_slurm_is_neither_cancelled_nor_removed(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.now = time.time()
    builder.run.attempt("local.1").path.mkdir(parents=True)
    builder.event("started", "local.1", "rank0", nodes=socket.gethostname(), pid=os.getpid())
    words = [verb, str(builder.run.path), *(["--yes"] if verb == "rm" else [])]
    assert main(words) == 4
    assert "runs without Slurm" in capsys.readouterr().err
    assert not builder.run.cancelled.exists()
