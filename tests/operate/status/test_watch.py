"""Following a run: every ending must be noticed, also those that leave no word, without bothering the controller."""

from __future__ import annotations

import io
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp.operate.record.run_state import EXIT_CODES, RunState
from clusterdp.operate.status.follow import Pace, follow
from clusterdp.operate.status.watch import watch
from tests.operate.builder import RunBuilder, preempted_once
from tests.operate.conftest import FakeQueue


class Clock:
    """Time passes only while somebody sleeps; then the next thing happens."""

    def __init__(self, *happenings: Callable[[], object]):
        self.now = 0.0
        self.left = list(happenings)
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        assert self.slept < 1000, "nothing happens any more, and it still waits"
        if self.left:
            self.left.pop(0)()

    def pace(self, **seconds: float) -> Pace:
        return Pace(clock=lambda: self.now, sleep=self.sleep, **seconds)


def nothing() -> None:
    pass


def watched(builder: RunBuilder, *happenings: Callable[[], object], **options: object) -> tuple[int, str]:
    out = io.StringIO()
    code = watch(builder.run, out, pace=Clock(*happenings).pace(), **options)  # type: ignore[arg-type]
    return code, out.getvalue()


def test_watch_prints_events_and_a_summary_of_a_preempted_run(elsewhere: Path, queue: FakeQueue) -> None:
    builder = preempted_once(elsewhere / "r")
    builder.run.config.write_text("name: digits\nparams:\n  lr: 0.1\n  epochs: 3\nbackend: sbatch\n")
    queue.answers("7|RUNNING|None|n[1-2]")
    second = builder.attempt("7.2")  # also preempted meanwhile

    def finish() -> None:
        second.restored(240).trained(241, 400).measured(step=400, test_accuracy=0.981).finished()

    code, text = watched(builder, finish)
    assert code == 0
    told = [line[10:] for line in text.split("\n\n")[0].splitlines()]
    assert told == [
        "submitted: job 7",
        "attempt 1 started on n[1-2] (job 7)",
        "TERM at step 119: all ranks stop together and save",
        "attempt 1 preempted at step 120: saved, requeued",
        "attempt 2 started on n[1-2] (job 7)",
        "attempt 2 resumed at step 120",
        "attempt 3 started on n[1-2] (job 7)",
        "attempt 3 resumed at step 240",
        "finished at step 400",
    ]
    assert "digits  done at step 400 of 400, 3 attempts in " in text
    assert "steps lost  0\n" in text
    assert "test_accuracy 0.981  loss 0.0025" in text
    assert "run folder  r\n" in text
    assert "clusterdp resume r params.epochs=.." in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("entry", "steps"), [("train:main", 0), (None, 9)])
def test_watch_offers_no_resume_for_a_done_run_without_steps_or_entry(
    builder: RunBuilder, queue: FakeQueue, entry: str | None, steps: int
) -> None:
    attempt = builder.submitted(entry=entry).attempt()
    if steps:
        attempt.trained(1, steps)
    builder.event("finished", "7.0", "batch", cause="done", exit=0)
    code, text = watched(builder)
    assert code == 0
    assert "next:\n  clusterdp logs" in text
    assert "resume" not in text


def test_watch_of_a_crash_ends_with_rank_log_and_next_command(builder: RunBuilder, queue: FakeQueue) -> None:
    trace = "".join(f"noise {i}\n" for i in range(30)) + "Traceback (most recent call last):\nValueError: nan\n"
    builder.submitted().attempt().trained(1, 5).printed("fine\n", 0).printed(trace, 3).failed(exit=1)
    builder.batch_log("srun: error: n2: task 3: Exited with exit code 1\n")
    code, text = watched(builder)
    assert code == 1
    assert "digits  failed at step 5 of 400, 1 attempt in " in text
    assert "crashed (exit 1)" in text
    assert "rank 3 on n2 (srun: Exited with exit code 1), from runs/digits/attempts/7.0/logs/rank-00003.out:" in text
    assert "  | ValueError: nan\n" in text
    assert "noise 16" not in text
    assert "clusterdp logs runs/digits --rank 3" in text


def test_watch_of_a_job_without_attempts_shows_its_batch_log(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().batch_log("clusterdp: cannot write to /full.\n")
    queue.answers("7|FAILED|NonZeroExitCode|n1")
    code, text = watched(builder)
    assert code == 1
    assert "its script failed before it could say why" in text
    assert "the batch script, from runs/digits/slurm-7.out:" in text
    assert "cannot write to /full." in text


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        ("7|CANCELLED|None|", RunState.CANCELLED, "by scancel, outside clusterdp"),
        ("7|NODE_FAIL|NodeDown|", RunState.FAILED, "a node failed, and Slurm did not requeue it"),
        ("8|RUNNING|None|n1", RunState.VANISHED, "no ending on record, and Slurm no longer knows the job"),
    ],
)
def test_watch_ends_at_an_unrecorded_end_only_after_the_settling_time(
    builder: RunBuilder, queue: FakeQueue, answer: str, state: RunState, words: str
) -> None:
    builder.submitted().attempt().trained(1, 5)
    queue.answers(answer)
    clock = Clock()
    out = io.StringIO()
    code = watch(builder.run, out, pace=clock.pace(ask_s=5, settle_s=15))
    assert code == EXIT_CODES[state]
    assert words in out.getvalue()
    assert 15 <= clock.now < 21


def test_watch_prefers_a_late_recorded_end_to_the_answer_of_squeue(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.submitted().attempt().trained(1, 400)
    queue.answers("7|COMPLETED|None|n1")
    code, text = watched(builder, *[nothing] * 10, attempt.finished)
    assert code == 0
    assert "done at step 400" in text


def test_watch_restarts_its_settling_time_after_a_requeue(builder: RunBuilder, queue: FakeQueue) -> None:
    """COMPLETED may be seen for a moment, then PENDING again: the settling time starts anew."""
    attempt = builder.submitted().attempt()
    queue.answers("7|PREEMPTED|None|")
    clock = Clock(
        *[nothing] * 20,
        lambda: queue.answers("7|PENDING|BeginTime|"),
        *[nothing] * 100,
        lambda: queue.answers("7|PREEMPTED|None|"),
        *[nothing] * 20,
        attempt.finished,
    )
    assert watch(builder.run, io.StringIO(), pace=clock.pace(ask_s=5, settle_s=15)) == 0


def test_watch_restarts_its_settling_time_after_a_resubmission(builder: RunBuilder, queue: FakeQueue) -> None:
    """The old job is over, the new one is on record: the settling time starts anew."""
    builder.submitted().attempt().trained(1, 5)
    queue.answers("7|COMPLETED|None|")

    def resubmit() -> None:
        builder.event("submitted", "7.0", "batch", job="8")

    def finish() -> None:
        queue.answers("8|RUNNING|None|n1")
        builder.attempt("8.0").finished()

    clock = Clock(*[nothing] * 45, resubmit, *[nothing] * 25, finish)
    assert watch(builder.run, io.StringIO(), pace=clock.pace(poll_s=0.3, ask_s=5, settle_s=15)) == 0


def test_watch_prefers_run_records_to_an_older_squeue_answer(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted()
    queue.answers("7|PENDING|Priority|")
    clock = Clock(nothing, builder.attempt, lambda: builder.cancelled().attempt("7.1").failed("cancelled"))
    states = [moment.status.state for moment in follow(builder.run, clock.pace(ask_s=100))]
    assert states == [RunState.WAITING, RunState.WAITING, RunState.RUNNING, RunState.CANCELLED, RunState.CANCELLED]


def test_watch_continues_after_a_retried_crash(builder: RunBuilder, queue: FakeQueue) -> None:
    first = builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")

    def finish() -> None:
        first.requeued("crash")
        builder.attempt("7.1").finished()

    first.files.cause.write_text("crash\n")  # all that is there in the instant before the ledger says requeued
    builder.event("failed", "7.0", "batch", cause="crash", exit=1)
    code, _ = watched(builder, finish)
    assert code == 0


def test_watch_waits_a_limited_time_for_the_batch_programs_last_record(builder: RunBuilder, queue: FakeQueue) -> None:
    """Else the one who takes a local cluster down after the watch cuts its last words off."""
    attempt = builder.submitted().attempt().trained(1, 9).outcome("done finished 9")
    clock = Clock(*[nothing] * 10, attempt.finished)
    assert watch(builder.run, io.StringIO(), pace=clock.pace()) == 0
    assert attempt.files.cause.exists()
    attempt.files.cause.unlink()
    clock = Clock()  # and if it never comes
    assert watch(builder.run, io.StringIO(), pace=clock.pace(close_s=15)) == 0
    assert clock.now < 16


def test_watch_asks_squeue_rarely_and_more_rarely_after_errors(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")
    clock = Clock(*[nothing] * 200, attempt.finished)
    watch(builder.run, io.StringIO(), pace=clock.pace(poll_s=0.3, ask_s=5))
    assert len(queue.asked) == 12  # in a minute

    other = RunBuilder(builder.run.path.parent / "other").submitted()
    queue.answers(error="Unable to contact slurm controller")
    attempt = other.attempt()
    before = len(queue.asked)
    clock = Clock(*[nothing] * 600, attempt.finished)
    out = io.StringIO()
    watch(other.run, out, pace=clock.pace(poll_s=0.3, ask_s=5))
    assert out.getvalue().count("attempt 1 running, but squeue does not answer") == 1
    assert len(queue.asked) - before == 5  # at 0, 10, 30, 70, 130 seconds, instead of 36 times


def test_ctrl_c_ends_watch_and_leaves_the_job_running(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt()
    queue.answers("7|RUNNING|None|n1")
    code, text = watched(builder, lambda: signal.raise_signal(signal.SIGINT))
    assert code == 130
    assert "job 7 goes on without you" in text
    assert "clusterdp watch runs/digits" in text
    code, text = watched(builder, lambda: signal.raise_signal(signal.SIGINT), farewell="")
    assert (code, text.splitlines()[-1][10:]) == (130, "attempt 1 started on n[1-2] (job 7)")


def test_watch_calls_on_progress_once_for_each_new_step(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.submitted().attempt().trained(1, 10)
    queue.answers("7|RUNNING|None|n1")
    seen: list[tuple[int, int | None]] = []
    watched(
        builder,
        nothing,
        lambda: attempt.trained(11, 20),
        attempt.finished,
        on_progress=lambda step, total: seen.append((step, total)),
    )
    assert seen == [(10, 400), (20, 400), (400, 400)]


def test_watch_prints_the_pending_reason_once(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted()
    queue.answers("7|PENDING|Priority|")
    code, text = watched(builder, *[nothing] * 50, lambda: builder.attempt().finished())
    assert code == 0
    assert text.count("waiting (Priority)") == 1


def test_watch_prints_late_events_once(builder: RunBuilder) -> None:
    builder.submitted().attempt()
    early = builder.now - 0.5

    def late() -> None:
        builder.now = early
        builder.event("restored", "7.0", "rank0", step=3)

    clock = Clock(late, lambda: builder.submitted("8").cancelled())
    told = [event["event"] for moment in follow(builder.run, clock.pace()) for event in moment.news]
    assert told == ["submitted", "started", "restored", "submitted"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watch_on_a_terminal_draws_a_progress_bar_and_prints_events(
    elsewhere: Path, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    builder = preempted_once(elsewhere / "r")
    queue.answers("7|RUNNING|None|n1")
    out = Terminal()
    last = builder.attempt("7.2").restored(240).trained(241, 300)
    assert watch(builder.run, out, pace=Clock(nothing, last.finished).pace()) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "attempt 3 running ━━━" in text
    assert "300/400 loss 0.003333" in text
    assert "attempt 1 preempted at step 120: saved, requeued\n" in text
    assert max(len(line) for part in text.split("\n") for line in part.split("\r")) <= 80
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1  # the cursor is back


@pytest.mark.parametrize("columns", [28, 40, 52])
def test_watch_bar_in_a_narrow_terminal_keeps_state_and_step(
    elsewhere: Path, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    builder = preempted_once(elsewhere / "r")
    queue.answers("7|RUNNING|None|n1")
    out = Terminal()
    last = builder.attempt("7.2").restored(240).trained(241, 300)
    assert watch(builder.run, out, pace=Clock(nothing, last.finished).pace()) == 0
    bars = re.findall(r"attempt 3 running[^\r\n]*", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()))
    assert any("300/400" in bar for bar in bars)
    assert all("…" not in bar and len(bar) <= columns for bar in bars)
    assert any("loss 0.003333" in bar for bar in bars) == (columns == 52)


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_watch_with_no_color_or_a_dumb_terminal_prints_plain_lines(
    builder: RunBuilder, queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, "dumb")
    builder.submitted().attempt().trained(1, 400).finished()
    out = Terminal()
    watch(builder.run, out, pace=Clock().pace())
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_exit_code_is_0_only_for_a_done_run() -> None:
    assert set(EXIT_CODES) == set(RunState)
    assert [state for state, code in EXIT_CODES.items() if code == 0] == [RunState.DONE]
    assert RunState.CANCELLED.exit_code == 143


# -- the order in which it is told --


def told(builder: RunBuilder, *happenings: Callable[[], object], **seconds: float) -> list[str]:
    out = io.StringIO()
    watch(builder.run, out, pace=Clock(*happenings).pace(**seconds))
    return [line[10:] for line in out.getvalue().split("\n\n")[0].splitlines()]


def test_watch_prints_submitted_before_started_even_if_recorded_later(builder: RunBuilder, queue: FakeQueue) -> None:
    """sbatch had not returned yet when the job began."""
    attempt = builder.attempt()
    builder.submitted()
    attempt.finished()
    assert told(builder)[:2] == ["submitted: job 7", "attempt 1 started on n[1-2] (job 7)"]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, "on the same nodes"),
        ({"spare": "n3"}, "with n3"),
        ({"size": 3}, "on 3 nodes"),
        ({"spare": "n3", "size": 1}, "with n3, on 1 node"),
    ],
)
def test_watch_reports_a_restart_and_its_nodes(
    builder: RunBuilder, queue: FakeQueue, fields: dict[str, object], where: str
) -> None:
    builder.submitted().attempt().trained(1, 9).saved(9).restarted(**fields)
    builder.attempt("7.0.1").restored(9).finished()
    out = io.StringIO()
    watch(builder.run, out, pace=Clock().pace())
    assert f"attempt 1 crashed at step 9: saved, starts again {where}\n" in out.getvalue()


def test_watch_keeps_the_order_of_events_with_different_clocks(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 119).stopped(120).requeued("preempted")
    builder.now -= 8  # the clock of the next node
    builder.attempt("7.1").restored(120).finished()
    out = io.StringIO()
    watch(builder.run, out, pace=Clock().pace())
    lines = out.getvalue().split("\n\n")[0].splitlines()
    assert [line[10:] for line in lines[2:5]] == [
        "TERM at step 119: all ranks stop together and save",
        "attempt 1 preempted at step 120: saved, requeued",
        "attempt 2 started on n[1-2] (job 7)",
    ]
    assert [line[:8] for line in lines] == sorted(line[:8] for line in lines)


def test_watch_waits_for_an_event_delayed_by_nfs(builder: RunBuilder, queue: FakeQueue) -> None:
    """Over NFS the files of two writers show in any order."""
    first = builder.submitted().attempt().trained(1, 9).saved(9)
    queue.answers("7|RUNNING|None|n1")
    late = builder.run.events / "7.0-batch.jsonl"
    started = late.read_text()

    def next_attempt() -> None:
        builder.attempt("7.1").restored(9)
        late.rename(late.with_suffix(".late"))

    def shows() -> None:
        late.write_text(started)
        first.requeued("crash")

    def finish() -> None:
        builder.event("finished", "7.1", "batch", cause="done")

    assert told(builder, nothing, next_attempt, nothing, shows, nothing, finish) == [
        "submitted: job 7",
        "attempt 1 started on n[1-2] (job 7)",
        "attempt 1 crashed at step 9: saved, requeued",
        "attempt 2 started on n[1-2] (job 7)",
        "attempt 2 resumed at step 9",
    ]


def test_watch_waits_only_briefly_for_a_missing_event(builder: RunBuilder, queue: FakeQueue) -> None:
    attempt = builder.attempt()  # sbatch by hand: nobody wrote `submitted`
    queue.answers("7|RUNNING|None|n1")
    out = io.StringIO()
    clock = Clock(*[nothing] * 20, attempt.finished)
    said: list[float] = []
    for moment in follow(builder.run, clock.pace(late_s=3)):
        said += [clock.now for event in moment.news if event["event"] == "started"]
    assert len(said) == 1
    assert 3 <= said[0] < 4, out.getvalue()


def test_watch_omits_a_late_signal_event_of_an_ended_attempt(builder: RunBuilder, queue: FakeQueue) -> None:
    first = builder.submitted().attempt().trained(1, 9)
    queue.answers("7|RUNNING|None|n1")

    def end() -> None:
        first.saved(9).requeued("preempted")

    def late() -> None:
        builder.event("signal", "7.0", "rank0", name="TERM", step=9)

    def finish() -> None:
        builder.attempt("7.1").restored(9).finished()

    lines = told(builder, end, late, finish)
    assert "attempt 1 preempted at step 9: saved, requeued" in lines
    assert not [line for line in lines if line.startswith("TERM at step 9")]


def test_watch_prints_an_attempts_end_before_the_wait_for_the_next(builder: RunBuilder, queue: FakeQueue) -> None:
    """squeue knows of a requeue before the ledger does."""
    first = builder.submitted().attempt()
    queue.answers("7|PENDING|BeginTime|")

    def end() -> None:
        first.requeued("crash")

    def finish() -> None:
        builder.attempt("7.1").finished()

    lines = told(builder, *[nothing] * 20, end, *[nothing] * 20, finish, ask_s=1, settle_s=15)
    assert lines.index("attempt 1 crashed: requeued") < lines.index("attempt 2 waiting (BeginTime)")
    assert all(line.startswith("attempt 2 waiting") for line in lines if "waiting" in line)


def test_watch_counts_no_attempt_with_an_empty_folder(builder: RunBuilder, queue: FakeQueue) -> None:
    first = builder.submitted().attempt()
    queue.answers("7|PENDING|BeginTime|")

    def end() -> None:
        first.requeued("crash")

    def begin() -> None:
        queue.answers("7|RUNNING|None|n1")
        builder.run.attempt("7.1").path.mkdir()

    def finish() -> None:
        builder.run.attempt("7.1").path.rmdir()
        builder.attempt("7.1").finished()

    lines = told(builder, end, *[nothing] * 9, begin, *[nothing] * 9, finish)
    assert {line for line in lines if "waiting" in line} <= {"attempt 2 waiting (BeginTime)", "attempt 2 waiting"}


def test_watch_prints_an_unrecorded_end_together_with_the_next_wait(builder: RunBuilder, queue: FakeQueue) -> None:
    """Killed at once: only the next attempt, in two minutes, will write what became of this one."""
    builder.submitted().attempt()
    queue.answers("7|PENDING|BeginTime|")
    lines = told(builder, *[nothing] * 20, lambda: builder.attempt("7.1").finished(), ask_s=1, settle_s=2)
    assert "attempt 1 ended; attempt 2 waiting (BeginTime)" in lines


def test_watch_prints_a_requeue_by_hand_once_while_the_job_waits(builder: RunBuilder, queue: FakeQueue) -> None:
    first = builder.submitted().attempt().trained(1, 9)
    queue.answers("7|RUNNING|None|n1")

    def end() -> None:
        builder.notice("DUE TO JOB REQUEUE")
        first.stopped(9).told_to_end()
        queue.answers("7|COMPLETING|None|n1")

    def waits() -> None:
        queue.answers("7|PENDING|BeginTime|")

    def finish() -> None:
        builder.now += 120
        first.found_to_be("preempted", by="7.1")
        builder.attempt("7.1").restored(9).finished()

    lines = told(builder, nothing, end, *[nothing] * 9, waits, *[nothing] * 20, finish, ask_s=1, settle_s=2)
    words = "requeued by the program or an administrator at step 9"
    assert lines[2:] == [
        "TERM at step 8: all ranks stop together and save",
        "attempt 1 stopping",
        f"attempt 1 {words}, saved; attempt 2 waiting (BeginTime)",
        f"attempt 1 {words}: saved",
        "attempt 2 started on n[1-2] (job 7)",
        "attempt 2 resumed at step 9",
        "finished at step 400",
    ]


def test_progress_words_omit_the_step_of_an_earlier_attempt(builder: RunBuilder) -> None:
    from clusterdp.operate.status.watch import progress_words

    builder.submitted().attempt().trained(1, 240).requeued("crash")
    second = builder.attempt("7.1")
    assert progress_words(next(follow(builder.run, Clock().pace()))) == ""
    second.restored(200)
    assert progress_words(next(follow(builder.run, Clock().pace()))).startswith("step 200 of 400")


def test_watch_of_a_done_run_ends_although_slurm_requeued_its_job(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    builder.attempt("7.1").restored(9).trained(10, 400).finished()
    queue.answers("7|PENDING|BeginTime|")
    code, text = watched(builder)
    assert code == 0
    assert "once more" not in text
