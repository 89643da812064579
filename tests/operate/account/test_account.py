"""The account of a run: the parts of each attempt add up to its allocated time, whatever its records are like."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterdp.operate.account.parts import NAMES, Parts
from clusterdp.operate.account.run_account import AttemptAccount, RunAccount, account_of
from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm
from tests.operate.builder import T0, RunBuilder

WIDE = {"cpus": "8(x2)", "gpus": 4}


def account(builder: RunBuilder, now: float | None = None) -> RunAccount:
    history = read_history(builder.run)
    return account_of(history, now, ended_by_slurm(builder.run, history.attempts))


def parts(attempt: AttemptAccount) -> dict[str, float]:
    """Those that are there, in whole seconds."""
    return {name: round(getattr(attempt.parts, name)) for name in NAMES if round(getattr(attempt.parts, name))}


def preempted_and_killed(builder: RunBuilder) -> None:
    """100 s until it is preempted at step 40; 200 s until its node dies at step 100, 20 s after step 80 was saved."""
    builder.submitted()
    builder.now = T0 + 10
    first = builder.attempt("7.0", awake=T0 + 10, **WIDE).queued(T0 + 1, T0 + 10)
    builder.now = T0 + 99
    first.measured(step=40, loss=1.0).spent(40, startup=20, restore=1, steps=40, saves=5, evaluation=4)
    first.stopped(40).exited()
    builder.now = T0 + 109
    first.requeued("preempted")
    builder.now = T0 + 160
    second = builder.attempt("7.1", awake=T0 + 160, **WIDE).queued(T0 + 110, T0 + 158)
    builder.now = T0 + 190
    second.restored(40).spent(41, startup=10, restore=10)
    builder.now = T0 + 230
    second.spent(80, startup=10, restore=10, steps=39, saves=1).saved(80)
    builder.now = T0 + 250
    second.measured(step=100, loss=0.5)
    builder.now = T0 + 400
    third = builder.attempt("7.2", awake=T0 + 400, **WIDE).queued(T0 + 358, T0 + 400)
    second.found_to_be("lost", by="7.2")
    builder.now = T0 + 439
    third.restored(80).spent(81, startup=20, restore=18)
    builder.now = T0 + 478
    third.spent(120, startup=20, restore=18, steps=39)
    builder.now = T0 + 498
    third.finished(120).exited()


def test_time_parts_of_preempted_lost_and_done_attempts_sum_to_allocated_time(builder: RunBuilder) -> None:
    preempted_and_killed(builder)
    found = account(builder)
    first, second, third = found.attempts
    assert parts(first) == {"startup": 40, "restore": 1, "kept": 40, "saves": 5, "evaluation": 4, "shutdown": 10}
    assert parts(second) == {"startup": 23, "restore": 10, "kept": 39, "lost": 19, "saves": 1, "unseen": 108}
    assert parts(third) == {"startup": 22, "restore": 18, "kept": 39, "shutdown": 22}
    for attempt in found.attempts:
        assert attempt.parts.allocated == pytest.approx(attempt.place.seconds)
    assert [round(attempt.queue_s or 0) for attempt in found.attempts] == [9, 48, 42]
    assert [(attempt.steps, attempt.steps_lost) for attempt in found.attempts] == [(40, 0), (60, 20), (40, 0)]
    assert [round(attempt.again_s) for attempt in found.attempts] == [0, 0, 19]


def test_suspended_time_counts_as_neither_allocated_nor_step_time(builder: RunBuilder) -> None:
    """Slurm's Elapsed leaves it out, too. The second suspension falls into the last step before a crash."""
    attempt = builder.submitted().attempt(awake=T0 + 2)
    builder.now = T0 + 19
    attempt.spent(1, startup=17)
    builder.now = T0 + 99
    builder.event("suspended", "7.0", "hang0", seconds=60.0)
    attempt.saved(10).spent(10, startup=17, steps=81)
    builder.now = T0 + 139
    builder.event("suspended", "7.0", "hang0", seconds=30.0)
    attempt.spent(15, startup=17, steps=121)
    attempt.exited(1).requeued("crash")
    found = account(builder).attempts[0]
    assert parts(found) == {"startup": 18, "kept": 21, "lost": 10, "shutdown": 1, "unseen": 1}
    assert found.parts.allocated == pytest.approx(found.place.seconds)


def test_goodput_is_kept_step_time_over_allocated_time_with_losses_by_cause(builder: RunBuilder) -> None:
    preempted_and_killed(builder)
    found = account(builder)
    assert found.goodput == pytest.approx(118 / (100 + 200 + 101), rel=0.02)
    assert found.unit == "GPU"
    assert found.hours == pytest.approx(4 * 401 / 3600, rel=0.02)
    preempted, lost, done = found.by_cause
    assert (preempted.cause, lost.cause, done.cause) == ("preempted", "lost", "done")
    assert preempted.lost_hours == pytest.approx(4 * (23 + 10) / 3600, rel=0.02)  # it comes back
    assert lost.lost_hours == pytest.approx(4 * (20 + 108 + 22 + 18) / 3600, rel=0.02)
    assert done.lost_hours == 0


def test_jobs_without_gpus_are_counted_in_core_hours(
    builder: RunBuilder,
) -> None:
    builder.submitted().attempt("7.0", cpus="4(x2),8", gpus=0).requeued("preempted")
    builder.attempt("7.1").requeued("preempted")
    builder.attempt("7.2", cpus="3").finished()
    found = account(builder)
    assert found.unit == "core"
    assert [attempt.width for attempt in found.attempts] == [16, 16, 3]
    assert account(RunBuilder(builder.run.path.parent / "other").submitted()).unit == ""


def test_command_job_has_running_and_shutdown_time_but_no_goodput(builder: RunBuilder) -> None:
    attempt = builder.submitted(entry="").attempt(awake=T0 + 2)
    builder.passes(30)
    attempt.exited(0).requeued("done")
    found = account(builder)
    assert parts(found.attempts[0]) == {"running": 31, "shutdown": 1}
    assert found.goodput is None


def test_killed_command_counts_as_running_until_its_last_log_output(builder: RunBuilder) -> None:
    import os

    attempt = builder.submitted(entry="").attempt(awake=T0 + 2).printed("epoch 3\n")
    os.utime(attempt.files.rank_log(0), (T0 + 22, T0 + 22))
    builder.now = T0 + 99
    builder.attempt("7.1", awake=T0 + 100).queued(T0 + 60, T0 + 100)
    attempt.found_to_be("lost", by="7.1")
    assert parts(account(builder).attempts[0]) == {"running": 20, "unseen": 38}


def test_time_of_an_attempt_without_steps_is_startup_once_another_reports_steps(builder: RunBuilder) -> None:
    died = builder.submitted().attempt("7.0")
    builder.passes(60)
    died.exited(1).requeued("crash")
    assert parts(account(builder).attempts[0]) == {"running": 61, "shutdown": 1}
    builder.attempt("7.1").spent(1, startup=1)
    assert parts(account(builder).attempts[0]) == {"startup": 61, "shutdown": 1}


def test_time_between_the_last_record_and_a_crash_counts_as_unseen(builder: RunBuilder) -> None:
    """A rank that hangs for half an hour until the collective times out has trained nothing in that time."""
    attempt = builder.submitted().attempt().spent(5, startup=0, steps=1)
    builder.passes(1800)
    attempt.exited(134)
    builder.passes(9)
    attempt.requeued("crash")
    assert parts(account(builder).attempts[0]) == {"lost": 1, "unseen": 1801, "shutdown": 10}


@pytest.mark.parametrize("code", [0, 75])
def test_time_before_exit_code_0_or_75_is_not_counted_as_unseen(builder: RunBuilder, code: int) -> None:
    """As a script with own_job(), which writes no outcome."""
    attempt = builder.submitted().attempt().spent(5, startup=0, steps=1)
    builder.passes(20)
    attempt.exited(code).requeued("asked")
    assert account(builder).attempts[0].parts.unseen == 0


def test_time_for_sending_notices_counts_as_shutdown(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().spent(5, startup=0, steps=1)
    attempt.exited(134).requeued("crash")
    builder.passes(8)
    builder.event("told", "7.0", "batch")
    assert parts(account(builder).attempts[0])["shutdown"] == 10


def test_startup_time_is_charged_only_once_despite_an_attempt_without_records(builder: RunBuilder) -> None:
    """An attempt whose records are lost, as on a full disk, is in no time of ours."""
    builder.submitted().attempt("7.0", **WIDE).requeued("preempted")
    builder.event("started", "7.1", "batch", cpus="4")
    builder.attempt("7.2", **WIDE).spent(1, startup=1).finished()
    found = account(builder)
    assert [each.cause for each in found.by_cause] == ["preempted", "done"]
    assert found.lost_hours == pytest.approx(4 * found.attempts[2].parts.startup / 3600)


def test_running_attempt_lasts_until_now_with_its_steps_kept(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt(**WIDE).spent(50, startup=0, steps=1)
    found = account(builder, now=builder.now + 30)
    assert parts(found.attempts[0]) == {"kept": 1, "unseen": 30}
    assert found.attempts[0].place.runs
    assert found.lost_hours == 0
    attempt.exited(1).failed()
    assert parts(account(builder).attempts[0])["lost"] == 1  # it has ended, and saved nothing


def test_attempt_without_a_recorded_end_ends_at_its_last_record(builder: RunBuilder) -> None:
    builder.submitted().attempt().spent(50, startup=0, steps=1)
    attempt = account(builder).attempts[0]
    assert not attempt.place.on_record
    assert attempt.parts.unseen == 0


def test_last_attempt_without_a_recorded_end_lasts_until_its_log_grew(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("x")
    os.utime(attempt.files.rank_log(0), (builder.now + 21, builder.now + 21))
    assert account(builder).total.allocated == pytest.approx(21, abs=1)
    attempt.labelled("1: x")
    os.utime(attempt.files.logs / "node-00000.log", (builder.now + 31, builder.now + 31))
    assert account(builder).total.allocated == pytest.approx(31, abs=1)


def test_slurmstepds_notice_sets_an_attempts_end_despite_a_later_exit_record(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt(awake=T0 + 2)
    builder.now = T0 + 49
    builder.notice("DUE TO TIME LIMIT")
    builder.now = T0 + 70
    attempt.exited(143).requeued("timeout")
    place = account(builder).attempts[0].place
    assert (place.begin, place.end, place.on_record) == (T0 + 2, T0 + 51, True)


def test_queue_time_of_a_chain_job_starts_at_its_predecessors_end(builder: RunBuilder) -> None:
    first = builder.submitted("7").attempt("7.0")
    builder.event("submitted", "7.0", "batch", job="8")
    builder.passes(1000)
    first.requeued("preempted")
    end = builder.now
    builder.passes(20)
    builder.attempt("8.0", awake=end + 21).queued(T0 + 2, end + 21)
    found = account(builder)
    assert found.attempts[1].queue_s == pytest.approx(21)


def test_clock_difference_of_the_slurm_controller_adds_no_queue_time(builder: RunBuilder) -> None:
    """Or one whose clock was moved: `clusterdp fake advance`."""
    first = builder.submitted().attempt("7.0", awake=T0 + 2).queued(T0 + 3601, T0 + 3602)
    builder.passes(50)
    first.requeued("preempted")
    end = builder.now
    builder.passes(10)
    builder.attempt("7.1", awake=end + 5).queued(end + 3600, end + 3605)
    found = account(builder)
    assert found.attempts[0].place.begin == T0 + 2
    assert [attempt.queue_s for attempt in found.attempts] == [pytest.approx(1), pytest.approx(5)]


def test_restore_from_an_older_checkpoint_counts_lost_steps_of_several_attempts(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").spent(100, startup=0, steps=1).saved(100).requeued("preempted")
    builder.attempt("7.1").restored(100).spent(200, startup=0, steps=1).saved(200).requeued("preempted")
    builder.attempt("7.2").restored(50).spent(60, startup=0, steps=1)
    assert [attempt.steps_lost for attempt in account(builder, builder.now).attempts] == [50, 100, 0]


def test_resume_from_a_chosen_step_counts_no_skipped_steps_as_lost(builder: RunBuilder) -> None:
    builder.submitted().attempt("7.0").spent(100, startup=0, steps=1).saved(100).requeued("preempted")
    builder.submitted("8", from_step=50).attempt("8.0").restored(50).spent(60, startup=0, steps=1)
    assert [attempt.steps_lost for attempt in account(builder, builder.now).attempts] == [0, 0]
    builder.attempt("8.1").restored(55).spent(56, startup=0, steps=1)
    assert [attempt.steps_lost for attempt in account(builder, builder.now).attempts] == [0, 5, 0]


def test_account_ignores_malformed_events(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt(awake="x", cpus=[4], gpus="many").queued("N/A", None)  # type: ignore[arg-type]
    attempt.spent(None, startup="y", steps=float("nan"), saves=-1, evaluation=1e300).exited("z")  # type: ignore[arg-type]
    with (builder.run.events / "7.0-rank0.jsonl").open("a") as file:
        file.write('{"time":17000')
    found = account(builder)
    assert found.total.allocated == pytest.approx(found.attempts[0].place.seconds)
    assert found.unit == ""


def test_run_without_records_has_an_empty_account(builder: RunBuilder) -> None:
    found = account(builder)
    assert (found.total, found.goodput, found.attempts, found.by_cause) == (Parts(), None, (), ())


SECONDS = st.floats(-50, 500)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, object]]:
    """What happens to the attempts of a job; clocks jump, and any event may be missing."""
    attempt = st.fixed_dictionaries(
        {
            "queued": st.none() | st.tuples(SECONDS, SECONDS),
            "restored": st.none() | st.integers(0, 300),
            "spent": st.lists(st.tuples(SECONDS, st.integers(0, 300), *[SECONDS] * 5), max_size=3),
            "measured": st.none() | st.tuples(SECONDS, st.integers(0, 300)),
            "saved": st.none() | st.integers(0, 300),
            "exited": st.none() | st.tuples(SECONDS, st.sampled_from([0, 1, 75, 137])),
            "end": st.sampled_from(["", "requeued", "stopped", "failed", "finished", "notice", "lost"]),
        }
    )
    return draw(st.lists(attempt, min_size=1, max_size=4))


def build(builder: RunBuilder, story: list[dict[str, object]]) -> None:
    builder.submitted()
    for i, told in enumerate(story):
        attempt = builder.attempt(f"7.{i}", awake=builder.now - 1, cpus="4", gpus=i)
        if told["queued"]:
            since, until = told["queued"]  # type: ignore[misc]
            attempt.queued(builder.now + since, builder.now + until)
        if told["restored"] is not None:
            attempt.restored(told["restored"])  # type: ignore[arg-type]
        kinds = ("startup", "restore", "steps", "saves", "evaluation")
        for after, step, *seconds in told["spent"]:  # type: ignore[attr-defined]
            builder.passes(after)
            attempt.spent(step, **dict(zip(kinds, seconds, strict=True)))
        if told["measured"]:
            after, step = told["measured"]  # type: ignore[misc]
            builder.passes(after)
            attempt.measured(step=step)
        if told["saved"] is not None:
            attempt.saved(told["saved"])  # type: ignore[arg-type]
        if told["exited"]:
            after, code = told["exited"]  # type: ignore[misc]
            builder.passes(after)
            attempt.exited(code)
        end = str(told["end"])
        if end == "notice":
            builder.notice("DUE TO PREEMPTION")
        elif end == "lost":
            attempt.found_to_be("lost", by=f"7.{i + 1}")
        elif end in ("requeued", "failed"):
            getattr(attempt, end)("crash")
        elif end:
            getattr(attempt, end)(7)


@settings(max_examples=25, deadline=None)
@given(story=histories(), runs=st.booleans())
def test_time_parts_of_random_histories_add_up_to_the_allocated_time(
    story: list[dict[str, object]], runs: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        builder = RunBuilder(Path(folder) / "run")
        build(builder, story)
        found = account(builder, builder.now + 10 if runs else None)
    for attempt in found.attempts:
        assert attempt.parts.allocated == pytest.approx(attempt.place.seconds, abs=1e-6)
        assert all(getattr(attempt.parts, name) >= 0 for name in NAMES)
        assert 0 <= attempt.steps_lost <= attempt.steps
        assert attempt.queue_s is None or attempt.queue_s >= 0
        assert 0 <= attempt.again_s <= attempt.parts.kept + attempt.parts.lost + 1e-6
    assert found.total.allocated == pytest.approx(sum(attempt.place.seconds for attempt in found.attempts))
    assert found.goodput is None or 0 <= found.goodput <= 1
    assert sum(each.hours for each in found.by_cause) == pytest.approx(found.hours)
    assert found.lost_hours <= found.hours + 1e-9
    assert sum(each.attempts for each in found.by_cause) <= len(found.attempts)


def test_time_parts_are_summed_by_name() -> None:
    assert Parts(kept=1, lost=2).plus(Parts(kept=3)) == Parts(kept=4, lost=2)


def test_attempt_restarted_in_place_waits_in_no_queue(builder: RunBuilder) -> None:
    builder.submitted()
    builder.attempt("7.0", awake=builder.now).queued(builder.now - 5, builder.now).restarted()
    end = builder.now
    builder.attempt("7.0.1", awake=end).trained(1, 9).finished(9)
    first, second = account(builder).attempts
    assert second.queue_s == pytest.approx(0, abs=0.01)
    assert first.place.end == pytest.approx(end)
    assert second.place.begin == pytest.approx(end)
