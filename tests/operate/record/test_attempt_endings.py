"""Why each attempt ended, in the words that `status` and `watch` print: what a user does next depends on them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from clusterdp.errors import RunError
from clusterdp.operate.change.resume_check import check_resumable
from clusterdp.operate.queue.run_status import current_status
from clusterdp.operate.record.ending import ending_text
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.operate.status.show_status import show_status
from clusterdp.operate.status.watch import event_line
from clusterdp.operate.why.first_failure import find_failure
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


def headline(builder: RunBuilder) -> str:
    out = io.StringIO()
    show_status(builder.run, out, now=builder.now)
    return out.getvalue().splitlines()[0]


def endings(builder: RunBuilder) -> list[str]:
    return [ending_text(attempt) for attempt in read_history(builder.run).attempts]


# -- a run that is done stays done --


def test_empty_attempt_folders_leave_a_done_run_done(builder: RunBuilder) -> None:
    builder.submitted("10020").attempt("10020.0").trained(1, 400).finished()
    (builder.run.path / "attempts/10020.1/logs").mkdir(parents=True)
    (builder.run.path / "attempts/9.0/logs").mkdir(parents=True)  # of a job without any event
    assert headline(builder) == "digits  done"
    assert endings(builder)[0] == "done"
    assert read_history(builder.run).closed
    assert endings(builder)[1:] == ["nothing on record: see the job's output"] * 2


def test_empty_attempt_folder_does_not_end_a_waiting_run(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    (builder.run.path / "attempts/7.1/logs").mkdir(parents=True)
    assert read_history(builder.run).state is RunState.WAITING
    queue.answers("7|FAILED|NonZeroExitCode|n1")
    assert headline(builder) == "digits  failed (its script failed before it could say why)"


def test_attempt_started_after_the_run_is_done_leaves_the_run_done(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    builder.attempt("7.1").restored(9).trained(10, 400).finished()
    builder.run.attempt("7.2").logs.mkdir(parents=True)
    builder.run.attempt("7.2").cause.write_text("done\n")
    builder.event("finished", "7.2", "batch", cause="done")
    assert headline(builder) == "digits  done"
    assert endings(builder) == ["preempted at step 9, saved", "done", "found the run done"]
    assert [attempt.number for attempt in read_history(builder.run).ran] == [1, 2]


def test_attempt_started_after_the_run_failed_leaves_the_run_failed(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().printed("Traceback (most recent call last):\nKeyError: 9\n", 2).failed(exit=9)
    before = headline(builder)
    builder.run.attempt("7.1").logs.mkdir(parents=True)
    builder.run.attempt("7.1").cause.write_text("crash\n")
    builder.event("failed", "7.1", "batch", cause="crash", exit=9)
    assert headline(builder) == before
    assert endings(builder) == ["crashed (exit 9)", "found the run over"]
    assert find_failure(read_history(builder.run)).rank == 2


def test_resume_of_a_finished_job_requeued_by_slurm_explains_the_requeue(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    builder.attempt("7.1").restored(9).trained(10, 400).finished()
    queue.answers("7|PENDING|BeginTime|")
    assert headline(builder) == "digits  done"
    with pytest.raises(RunError, match="is done, and Slurm starts job 7 once more"):
        check_resumable(builder.run)
    queue.answers(error="Unable to contact slurm controller")
    assert headline(builder) == "digits  done"
    queue.answers("7|COMPLETED|None|")
    assert headline(builder) == "digits  done"


def test_status_of_a_finished_run_without_preemption_does_not_ask_squeue(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 400).finished()
    assert headline(builder) == "digits  done"
    assert queue.asked == []


def test_attempts_are_ordered_by_restart_count_not_clock(builder: RunBuilder) -> None:
    builder.submitted().attempt().requeued("preempted")
    builder.now -= 60  # the next node's clock
    builder.attempt("7.1").requeued("preempted")
    (builder.run.path / "attempts/7.2").mkdir()
    builder.attempt("7.3")
    os.utime(builder.run.path / "attempts/7.2", (1, 1))
    assert [a.name for a in read_history(builder.run).attempts] == ["7.0", "7.1", "7.2", "7.3"]


def test_new_folder_mtimes_of_a_copied_run_do_not_reorder_its_attempts(builder: RunBuilder) -> None:
    (builder.run.path / "attempts/5.0/logs").mkdir(parents=True)
    builder.submitted("5").attempt("5.1").requeued("preempted")
    builder.submitted("6").attempt("6.0").finished()
    assert [a.name for a in read_history(builder.run).attempts] == ["5.0", "5.1", "6.0"]


# -- on whose behalf Slurm ended it --


@pytest.mark.parametrize("words", ["", "DUE to SIGNAL Terminated", "DUE to SIGNAL Killed"])
def test_attempt_ended_by_scancel_is_shown_as_cancelled(builder: RunBuilder, queue: FakeQueue, words: str) -> None:
    attempt = builder.submitted().attempt().trained(1, 119)
    builder.notice(words)
    attempt.stopped(120).told_to_end()
    assert endings(builder) == ["cancelled at step 120, saved"]
    assert not read_history(builder.run).state.over  # somebody may have requeued it: Slurm knows
    queue.answers("7|CANCELLED|None|")
    assert headline(builder) == "digits  cancelled (by scancel, outside clusterdp)"
    queue.answers()  # Slurm has forgotten it
    assert headline(builder) == "digits  cancelled (by scancel, outside clusterdp)"


def test_notice_counts_before_the_lines_of_2000_nodes(builder: RunBuilder) -> None:
    builder.submitted().attempt().trained(1, 119).stopped(120).told_to_end()
    builder.notice("DUE TO PREEMPTION")
    with (builder.run.path / "slurm-7.out").open("a") as log:
        log.writelines(f"srun: error: n{node}: task {node}: Exited with exit code 75\n" for node in range(2000))
    assert endings(builder) == ["preempted at step 120, saved"]


def test_cancelled_attempt_does_not_decide_the_state_of_a_newer_job(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.submitted().attempt()
    builder.notice()
    attempt.stopped(9).told_to_end()
    builder.submitted("8")
    assert headline(builder) == "digits  vanished (no ending on record, and Slurm no longer knows the job)"


def test_cancelled_run_with_a_completing_job_is_shown_as_still_ending(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 9)
    builder.cancelled().notice()
    builder.event("signal", "7.0", "batch", name="TERM")
    queue.answers("7|COMPLETING|None|n1")
    assert headline(builder) == "digits  running (completing); cancelled, it is still ending"


def test_cancelled_run_with_a_killed_batch_script_is_shown_as_cancelled(builder: RunBuilder) -> None:
    builder.submitted().attempt().stopped(120).builder.cancelled()
    assert endings(builder) == ["cancelled at step 120, saved"]
    assert headline(builder) == "digits  cancelled"


def test_status_of_a_run_cancelled_while_waiting_names_the_last_ending(builder: RunBuilder) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted").builder.cancelled()
    assert headline(builder) == "digits  cancelled (the last attempt had ended before: preempted)"
    assert endings(builder) == ["preempted at step 9, saved"]


def test_attempt_finding_the_cancel_marker_at_its_start_is_shown_as_cancelled(builder: RunBuilder) -> None:
    builder.submitted().attempt().outcome("stop cancelled 0").failed("stopped", reason="cancelled", exit=1)
    assert headline(builder.cancelled()) == "digits  cancelled"
    assert endings(builder) == ["cancelled"]


@pytest.mark.parametrize(
    ("notice", "term", "words"),
    [
        ("DUE TO PREEMPTION", True, "preempted"),
        ("DUE TO PREEMPTION", False, "preempted"),  # killed before its shell could note the TERM
        (None, True, "preempted"),  # Slurm told it to end, and brought it back
        ("DUE TO JOB REQUEUE", True, "requeued by the program or an administrator"),
        (
            "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
            False,
            "ended because a node failed, or Slurm could not start its ranks",
        ),
        (None, False, "lost without a record (a node failed, or it was killed)"),
    ],
)
def test_lost_attempt_gets_its_cause_from_slurms_notice_or_a_recorded_term(
    builder: RunBuilder, notice: str | None, term: bool, words: str
) -> None:
    first = builder.submitted().attempt()
    if term:
        builder.event("signal", "7.0", "batch", name="TERM")
    if notice is not None:
        builder.notice(notice)
    builder.now += 120
    builder.attempt("7.1")
    first.found_to_be("lost", by="7.1")
    assert endings(builder) == [words, ""]


@pytest.mark.parametrize(("notice", "words"), [("DUE TO PREEMPTION", "preempted"), ("", "cancelled"), (None, "")])
def test_exited_attempt_gets_its_cause_from_slurms_notice(builder: RunBuilder, notice: str | None, words: str) -> None:
    """Seen on 20.11: its script survived a preemption without a grace time, and had noted no TERM."""
    builder.submitted().attempt().exited(143)
    if notice is not None:
        builder.notice(notice)
    assert [attempt.cause for attempt in read_history(builder.run).attempts] == [words]


def test_requeue_by_hand_is_not_shown_as_preempted(builder: RunBuilder) -> None:
    first = builder.submitted().attempt()
    builder.notice("DUE TO JOB REQUEUE")
    first.stopped(40).told_to_end()
    builder.now += 120
    builder.attempt("7.1").restored(40)
    first.found_to_be("preempted", by="7.1")
    assert endings(builder)[0] == "requeued by the program or an administrator at step 40, saved"


@pytest.mark.parametrize("notice", ["DUE TO JOB REQUEUE", ""])
def test_requeue_by_the_batch_script_keeps_its_recorded_cause_despite_slurms_notice(
    builder: RunBuilder, notice: str
) -> None:
    """Slurm calls it a requeue in the output, as it calls all of them; a scancel may come right after it."""
    first = builder.submitted().attempt().stopped(40).requeued("preempted")
    builder.notice(notice)
    first.told_to_end()
    assert endings(builder) == ["preempted at step 40, saved"]


def test_requeue_requested_by_a_killed_batch_program_is_shown_as_preempted(builder: RunBuilder) -> None:
    """It notes a TERM only where it did not ask for the requeue itself."""
    first = builder.submitted().attempt().stopped(40)
    builder.notice("DUE TO JOB REQUEUE")
    builder.now += 120
    builder.attempt("7.1")
    first.found_to_be("preempted", by="7.1")
    assert endings(builder)[0] == "preempted at step 40, saved"


def test_stopped_attempt_without_a_recorded_cause_is_shown_as_ended_by_signal(builder: RunBuilder) -> None:
    builder.submitted().attempt().stopped(40)
    assert endings(builder) == ["stopped by a signal at step 40, saved"]


@pytest.mark.parametrize("which", [0, 1])
def test_slurm_notice_explains_only_the_attempt_running_at_its_time(builder: RunBuilder, which: int) -> None:
    builder.submitted()
    for i in range(2):
        attempt = builder.attempt(f"7.{i}")
        if i == which:
            builder.notice("DUE TO PREEMPTION")
        builder.now += 120
        builder.event("started", f"7.{i + 1}", "batch")
        attempt.found_to_be("lost", by=f"7.{i + 1}")
    lost = "lost without a record (a node failed, or it was killed)"
    assert endings(builder) == (["preempted", lost, ""] if which == 0 else [lost, "preempted", ""])


def test_recorded_term_without_an_end_does_not_end_the_attempt(builder: RunBuilder) -> None:
    builder.submitted().attempt()
    builder.event("signal", "7.0", "batch", name="TERM")  # `scancel --batch --signal=TERM`
    assert endings(builder) == [""]
    assert read_history(builder.run).state is RunState.RUNNING


# -- what the batch script says --


def test_status_of_a_given_up_run_names_the_exhausted_restart_limit(builder: RunBuilder) -> None:
    builder.submitted()
    for i in range(5):
        builder.attempt(f"7.{i}").requeued("preempted")
    builder.attempt("7.5").failed("gave-up")
    words = "5 attempts in a row without a new checkpoint"
    assert headline(builder) == f"digits  gave-up ({words})"
    assert endings(builder)[-1] == f"gave up: {words}"
    builder.attempt("7.6").failed("gave-up", reason="4 crashes")
    assert headline(builder) == "digits  gave-up (4 crashes)"


@pytest.mark.parametrize("cause", ["unknown", "lost"])
def test_status_names_a_silent_slurm_controller_as_the_reason_for_no_requeue(builder: RunBuilder, cause: str) -> None:
    attempt = builder.submitted().attempt().trained(1, 39).stopped(40).failed(cause, exit=75)
    assert endings(builder) == ["not requeued: Slurm's controller did not answer"]
    line = headline(builder)
    assert line.startswith("digits  failed (Slurm's controller did not answer at the stop; nothing is lost;")
    attempt.trained(41, 42)  # a crash, then
    assert "what was saved is safe" in headline(builder)


def claim(builder: RunBuilder, number: int, attempt: str) -> None:
    builder.run.claims.mkdir(exist_ok=True)
    (builder.run.claims / f"{number:06d}").write_text(f"{attempt} 1234abcd\n")


def test_older_of_two_live_jobs_is_shown_as_superseded(builder: RunBuilder, queue: FakeQueue) -> None:
    first = builder.submitted().attempt().trained(1, 9)
    claim(builder, 1, "7.0")
    builder.attempt("8.0").trained(1, 5)
    claim(builder, 2, "8.0")
    assert endings(builder) == ["superseded by attempt 2, 9 steps lost", ""]
    queue.answers("7|RUNNING|None|n1", "8|RUNNING|None|n2")
    assert headline(builder) == "digits  running"
    first.outcome("stop claim 9").failed("stopped", reason="claim", exit=1)  # it has noticed
    assert endings(builder) == ["superseded by attempt 2, 9 steps lost", ""]
    assert headline(builder) == "digits  running"


def test_late_claim_of_a_failed_attempt_overtakes_none(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").restarted()
    builder.attempt("7.0.1").trained(1, 5)
    claim(builder, 1, "7.0.1")
    claim(builder, 2, "7.0")
    history = read_history(builder.run)
    assert (history.state, [attempt.cause for attempt in history.attempts]) == (RunState.RUNNING, ["crash", ""])


@pytest.mark.parametrize("cause", ["stopped", "overtaken"])
def test_late_end_of_an_overtaken_attempt_leaves_the_run_done(
    builder: RunBuilder, queue: FakeQueue, cause: str
) -> None:
    first = builder.submitted().attempt().trained(1, 9)
    claim(builder, 1, "7.0")
    builder.attempt("7.1").trained(1, 400).finished()
    claim(builder, 2, "7.1")
    first.outcome("stop claim 9").failed(cause, reason="claim", exit=1)
    assert endings(builder) == ["superseded by attempt 2, 9 steps lost", "done"]
    assert current_status(read_history(builder.run)).state is RunState.DONE


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("done", None),
        ("overtaken", "attempt 1 superseded by another attempt"),
        ("stopped", "attempt 1 stopped for good"),
        ("lost", "attempt 1 lost without a record (a node failed, or it was killed): requeued"),
    ],
)
def test_event_line_names_an_attempts_cause_recorded_by_the_next_attempt(
    builder: RunBuilder, cause: str, said: str | None
) -> None:
    builder.submitted().attempt().found_to_be(cause, by="7.1")
    history = read_history(builder.run)
    assert [event_line(event, history) for event in history.events if event["event"] == "requeued"] == [said]


def test_event_lines_have_the_error_of_a_failed_save(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().saved(10).trained(11, 20)
    builder.event("save-failed", attempt.files.name, "rank0", step=20, error="h: differs between ranks", failures=1)
    attempt.exited(1).requeued("crash")
    history = read_history(builder.run)
    lines = [line for event in history.events if (line := event_line(event, history))]
    assert "a checkpoint was not saved at step 20: h: differs between ranks" in lines
    assert any("step 10 is saved, because a save failed (h: differs between ranks)" in line for line in lines), lines
    attempt.saved(21)
    assert read_history(builder.run).attempts[0].unsaved == ""


# -- whatever lies in the folders --


def test_status_survives_odd_files_in_attempt_and_event_folders(builder: RunBuilder, elsewhere: Path) -> None:
    builder.submitted().attempt().trained(1, 3)
    attempts = builder.run.path / "attempts"
    for name in ("7.1", "7.x", "x.1", "7", "²³.1", "7.1.2", ".7.2"):
        (attempts / name).mkdir()
    (attempts / "7.3").write_text("a file")
    (attempts / "7.4").symlink_to("7.4")
    (attempts / "7.5").symlink_to(elsewhere / "nowhere")
    for name in ("cause", "outcome", "saved", "chain", "logs"):
        (attempts / "7.1" / name).mkdir()
    (attempts / "99999999999999999999999.0").mkdir()
    builder.attempt("7.6").files.cause.write_bytes(b"\xff\xfe\x00 \n")
    builder.run.attempt("7.6").saved.write_text("99" * 3000)
    builder.event("started", "7.7", "batch", job=["a"], nodes={"b": 1})
    builder.event("requeued", "7.8", "batch", of=["x"], cause={"y": 2})
    builder.event("submitted", "submit-7", "submit", job={"z": 1}, name=3)
    for when in ("NaN", "1e300", "-5", '"soon"', "[" * 100_000):
        with (builder.run.events / "7.6-rank0.jsonl").open("a") as file:
            file.write(f'{{"event":"failed","attempt":"7.6","step":1e999,"time":{when}}}\n')
    (builder.run.events / "folder.jsonl").mkdir()
    builder.run.claims.write_text("no folder")
    (builder.run.path / "slurm-7.out").mkdir()
    out = io.StringIO()
    for as_json in (False, True):
        show_status(builder.run, out, as_json=as_json, now=builder.now)
    assert "digits" in out.getvalue()


def test_attempt_both_preempted_and_stopped_is_shown_as_stopped_by_clusterdp_stop(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().stopped(40)  # by TERM, and `clusterdp stop` had come too
    attempt.exited().files.cause.write_text("stopped\n")
    builder.event("failed", "7.0", "batch", cause="stopped", reason="user")
    assert ending_text(read_history(builder.run).attempts[0]) == "stopped by clusterdp stop at step 40, saved"


def test_failed_attempt_shows_its_error_and_without_one_its_exit_code(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 9)
    builder.event("failed", "7.0", "batch", cause="crash", exit=9, error="KeyError: 'lr'", rank=0)
    builder.attempt("7.1")
    builder.event("failed", "7.1", "batch", cause="crash", exit=9)
    assert endings(builder) == ["crashed at step 9: KeyError: 'lr'", "crashed (exit 9)"]
