"""What is read off a run folder: `status`, `watch` and `resume` all decide by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterdp.operate.record import attempt_history
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import read_lines
from clusterdp.rundir.lenient_reads import LAST, ends_of
from tests.operate.builder import RunBuilder, preempted_once


def test_history_of_a_resumed_preempted_run_has_no_lost_steps(elsewhere: Path) -> None:
    history = read_history(preempted_once(elsewhere / "r").run)
    first, second = history.attempts
    assert (first.cause, first.first_step, first.last_step, first.saved, first.lost) == ("preempted", 1, 120, 120, 0)
    assert (second.cause, second.restored, second.last_step, second.lost) == ("", 120, 240, None)
    assert (history.state, history.job, history.name) == (RunState.RUNNING, "7", "digits")
    assert (history.step, history.total, history.lost) == (240, 400, 0)
    assert second.rate == pytest.approx(10)


def test_steps_after_the_last_checkpoint_of_a_crash_are_lost(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 55).saved(50).trained(56, 63).requeued("crash")
    builder.attempt("7.1").restored(50).trained(51, 52)
    history = read_history(builder.run)
    assert history.attempts[0].lost == history.lost == 13
    assert history.step == 52


def test_attempts_restarted_in_place_are_ordered_by_life_and_count_lost_steps(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 55).saved(50).trained(56, 63).restarted()
    for life in range(1, 11):
        builder.attempt(f"7.0.{life}").restored(50).trained(51, 52).restarted()
    builder.attempt("7.1").restored(50).trained(51, 60)
    history = read_history(builder.run)
    assert [attempt.name for attempt in history.attempts] == ["7.0", *(f"7.0.{n}" for n in range(1, 11)), "7.1"]
    assert (history.jobs, history.state, history.lost) == (("7",), RunState.RUNNING, 13 + 10 * 2)
    assert (history.attempts[0].restarted, history.attempts[0].failed) == (True, False)


def test_run_done_after_a_restart_in_place_does_not_come_again(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 5).restarted()
    builder.attempt("7.0.1").trained(1, 9).outcome("done finished 9").finished(9)
    history = read_history(builder.run)
    assert (history.state, history.may_come_again) == (RunState.DONE, False)


def test_profile_run_is_done_with_its_kind_as_the_reason(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 20).finished(20).outcome("done profile 20")
    history = read_history(builder.run)
    assert (history.state, history.why) == (RunState.DONE, "a profile, not a training")


def test_steps_before_an_attempt_without_steps_are_lost_as_well(builder: RunBuilder) -> None:
    builder.attempt().trained(1, 52).saved(46).restarted("node-lost")
    builder.attempt("7.0.1").restarted("node-lost")
    builder.attempt("7.0.2").restored(46).trained(47, 60)
    history = read_history(builder.run)
    assert [attempt.lost for attempt in history.attempts] == [6, None, None]


def test_all_steps_are_lost_if_the_next_attempt_restores_no_checkpoint(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 30).requeued("crash")
    second = builder.attempt("7.1")
    assert read_history(builder.run).attempts[0].lost is None  # not known yet: it may restore still
    second.trained(1, 5)
    assert read_history(builder.run).lost == 30


def test_resume_from_an_older_step_counts_no_steps_as_lost(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").trained(1, 100).saved(100).failed()
    builder.submitted("8", from_step=40).attempt("8.0").restored(40).trained(41, 60)
    assert read_history(builder.run).lost == 0


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        ("crash", RunState.FAILED),
        ("timeout", RunState.FAILED),
        ("gave-up", RunState.GAVE_UP),
        ("stopped", RunState.STOPPED),
        ("cancelled", RunState.CANCELLED),
        ("done", RunState.DONE),
    ],
)
def test_last_recorded_cause_decides_the_run_state(builder: RunBuilder, cause: str, state: RunState) -> None:
    builder.submitted().attempt().failed(cause, exit=1)
    assert read_history(builder.run).state is state


def test_crash_before_its_requeue_does_not_make_the_run_failed(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    builder.event("failed", "7.0", "batch", cause="crash", exit=1)  # before the requeue, and without a cause on file
    assert not read_history(builder.run).state.over
    attempt.requeued("crash")
    assert read_history(builder.run).state is RunState.WAITING


def test_submitted_run_is_waiting(builder: RunBuilder) -> None:
    assert read_history(builder.submitted().run).state is RunState.WAITING


def test_cancel_marker_makes_a_run_without_attempts_cancelled(builder: RunBuilder) -> None:
    assert read_history(builder.submitted().cancelled().run).state is RunState.CANCELLED


def test_cancel_marker_leaves_a_run_with_a_live_attempt_running(builder: RunBuilder) -> None:
    builder.submitted().attempt()
    assert read_history(builder.cancelled().run).state is RunState.RUNNING


def test_cancel_marker_makes_a_requeued_waiting_run_cancelled(builder: RunBuilder) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    assert read_history(builder.cancelled().run).state is RunState.CANCELLED


def test_state_of_a_resumed_run_follows_its_new_job(builder: RunBuilder) -> None:
    builder.submitted().attempt().failed()
    history = read_history(builder.submitted("8").run)
    assert (history.state, history.job, history.jobs) == (RunState.WAITING, "8", ("7", "8"))


def test_resubmission_by_the_batch_script_keeps_name_and_cluster_of_the_run(builder: RunBuilder) -> None:
    builder.submitted(cluster="/tmp/fake").attempt().stopped(5)
    builder.event("submitted", "7.0", "batch", job="9")  # as the batch script writes it
    history = read_history(builder.run)
    assert (history.name, history.cluster, history.job) == ("digits", "/tmp/fake", "9")


def test_job_submitted_by_hand_is_known_from_its_attempt(builder: RunBuilder) -> None:
    builder.submitted().attempt().failed()
    builder.attempt("12.0")
    assert read_history(builder.run).jobs == ("7", "12")


def test_attempts_are_ordered_by_start_if_job_ids_wrap(builder: RunBuilder) -> None:
    builder.submitted("99").attempt("99.0").requeued("preempted")
    builder.submitted("2").attempt("2.0")
    assert [a.name for a in read_history(builder.run).attempts] == ["99.0", "2.0"]


def test_array_element_ids_are_valid_attempt_names(builder: RunBuilder) -> None:
    builder.submitted("5").attempt("5_3.0")
    assert [a.job for a in read_history(builder.run).attempts] == ["5_3"]


def test_outcome_of_the_ranks_is_the_cause_without_a_recorded_one(builder: RunBuilder) -> None:
    builder.submitted().attempt().stopped(40, reason="time")
    history = read_history(builder.run)
    assert (history.attempts[0].cause, history.state) == ("timeout", RunState.WAITING)


def test_lost_attempt_ends_at_the_time_of_its_last_record(builder: RunBuilder) -> None:
    first = builder.submitted().attempt().trained(1, 50)
    last_heard = builder.now
    builder.now += 3600
    first.files.cause.write_text("lost\n")  # by the next attempt, which found no ending
    builder.attempt("7.1")
    builder.event("requeued", "7.1", "batch", cause="lost", of="7.0")
    history = read_history(builder.run)
    assert history.attempts[0].ended == pytest.approx(last_heard)
    assert history.attempts[0].requeued
    assert not history.attempts[1].requeued


def test_metrics_without_a_step_are_in_the_history(builder: RunBuilder) -> None:
    builder.submitted().attempt().trained(1, 400).measured(test_accuracy=0.98).finished()
    history = read_history(builder.run)
    assert history.metrics["test_accuracy"] == 0.98
    assert (history.step, history.total) == (400, 400)


def test_history_skips_torn_and_foreign_lines(elsewhere: Path) -> None:
    builder = preempted_once(elsewhere / "r")
    for path in [*builder.run.events.iterdir(), *builder.run.metrics.iterdir()]:
        with path.open("ab") as file:
            file.write(b'[1, 2]\n\xff\xfe\n{"time": "soon"\n{"time": 17, "event": "sav')
    builder.run.attempt("7.1").outcome.write_bytes(b"")
    builder.run.attempt("7.1").saved.write_bytes(b"\xff\n")
    (builder.run.path / "attempts" / "notes.txt").write_text("mine")
    history = read_history(builder.run)
    assert history.step == 240
    assert history.attempts[1].cause == ""


def test_run_without_metrics_has_no_steps_in_its_history(builder: RunBuilder) -> None:
    builder.submitted().attempt().requeued("preempted")
    builder.attempt("7.1")
    history = read_history(builder.run)
    assert (history.step, history.total, history.saved, history.lost) == (None, None, None, 0)


def test_empty_run_folder_is_waiting(builder: RunBuilder) -> None:
    history = read_history(builder.run)
    assert (history.state, history.job, history.attempts) == (RunState.WAITING, None, ())


def test_history_reads_only_the_end_of_the_metrics(builder: RunBuilder) -> None:
    builder.submitted().attempt()
    path = builder.run.metrics / "7.0.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        file.writelines(f'{{"time":{i},"step":{i},"loss":0.5}}\n' for i in range(1, 200_001))
    history = read_history(builder.run)
    assert (history.step, history.attempts[0].first_step) == (200_000, 1)
    assert len(ends_of(path)[1]) < 3000


@pytest.mark.parametrize("life", ["trained on", "has measured nothing yet", "no total", "overtaken"])
def test_history_read_without_older_metrics_has_unchanged_state_step_and_newest_metrics(
    life: str, elsewhere: Path
) -> None:
    builder = RunBuilder(elsewhere / "r").submitted()
    builder.attempt("7.0").trained(1, 20, None if life == "no total" else 40, phase="warm").stopped(20).requeued("term")
    if life == "overtaken":
        builder.attempt("8.0").trained(21, 23, None).outcome("overtaken claim 23")
    else:
        second = builder.attempt("7.1").restored(20)
        _ = second if life == "has measured nothing yet" else second.trained(21, 30, 40, lr=0.1).measured(test_loss=0.5)
    brief, full = (read_history(builder.run, all_metrics=wanted) for wanted in (False, True))
    assert full.step and full.metrics
    for name in ("state", "why", "job", "jobs", "step", "total", "phase", "metrics", "saved", "closed"):
        assert getattr(brief, name) == getattr(full, name), name
    assert brief.last and full.last and brief.last.number == full.last.number


def test_metrics_of_older_attempts_are_read_only_on_request(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = preempted_once(elsewhere / "r")
    read: list[str] = []
    monkeypatch.setattr(attempt_history, "ends_of", lambda path: read.append(path.stem) or ends_of(path))
    history = read_history(builder.run, all_metrics=False)
    assert (read, history.step, history.lost) == (["7.1"], 240, 0)
    read.clear()
    assert read_history(builder.run).attempts[0].first_step == 1
    assert sorted(read) == ["7.0", "7.1"]


@pytest.mark.parametrize("then", [{}, {"lr": 0.1}, {"lr": None}, {"said": 'a":b'}, {"o": {"d": 1}}, {'q"\u00e9': 2.0}])
def test_ends_of_has_the_last_value_of_every_metric(then: dict[str, Any], builder: RunBuilder) -> None:
    attempt = (
        builder.attempt("7.0")
        .trained(1, 40, lr=0.2)
        .measured(step=40, **then)
        .trained(41, 300)
        .measured(**dict.fromkeys(then))
    )
    path = builder.run.metrics / f"{attempt.files.name}.jsonl"
    records, (first, latest) = list(read_lines(path)), ends_of(path)
    assert len(records) > 2 * LAST
    assert attempt_history._latest(latest) == attempt_history._latest(records)
    assert (first, latest[-1]) == (records[0], records[-1])


def test_ends_of_returns_only_the_last_of_many_records(builder: RunBuilder) -> None:
    attempt = builder.attempt("7.0").trained(1, 300, lr=0.2)
    path = builder.run.metrics / f"{attempt.files.name}.jsonl"
    assert len(ends_of(path)[1]) == LAST
    path.write_bytes(path.read_bytes()[:-9])  # torn
    assert ends_of(path)[1][-1]["step"] == 299
    path.write_text("")
    assert ends_of(path) == ({}, [])
