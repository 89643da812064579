from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from clusterdp.cli import main
from clusterdp.errors import RunError
from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.show_logs import show_logs
from clusterdp.operate.status.follow import Pace
from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import CHUNK, Tail, last_lines
from tests.operate.builder import RunBuilder, preempted_once
from tests.operate.conftest import FakeQueue


def printed(run: RunDir, pace: Pace | None = None, out: io.StringIO | None = None, **options: Any) -> str:
    """With the options of the command line."""
    out = out or io.StringIO()
    assert show_logs(run, Choice.read(**options), out, pace) == 0
    return out.getvalue()


def test_logs_prints_rank_0_of_the_newest_attempt_by_default(elsewhere: Path) -> None:
    builder = preempted_once(elsewhere / "r")
    builder.run.attempt("7.0").rank_log(0).write_text("old\n")
    builder.run.attempt("7.1").rank_log(0).write_text("new\nlast line without end")
    builder.run.attempt("7.1").rank_log(2).write_text("two\n")
    assert printed(builder.run) == "new\nlast line without end"
    assert printed(builder.run, rank="2") == "two\n"
    assert printed(builder.run, attempt="1") == printed(builder.run, attempt="7.0") == "old\n"


def test_logs_command_takes_rank_tail_errors_and_attempt_options(
    builder: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = builder.submitted().attempt()
    for rank in (0, 1, 2):
        attempt.printed("fine\nERROR x\n", rank)
    run = str(builder.run.path)
    assert main(["logs", run, "--rank", "0-1", "-n", "1"]) == 0
    assert capsys.readouterr().out == "[0] ERROR x\n[1] ERROR x\n"
    assert main(["logs", run, "--errors", "--attempt", "all", "--tail", "all"]) == 0
    assert "ranks 0-2: ERROR x\n" in capsys.readouterr().out
    assert main(["logs", run, "--tail", "soon"]) == 2
    assert capsys.readouterr().err.startswith("clusterdp: -n: 'soon' is not a number")


def test_logs_all_labels_each_line_with_its_rank(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt()
    for rank in (0, 3, 11):
        attempt.printed(f"I am {rank}\nbye\x0c\n", rank)
    assert printed(builder.run, every=True) == (
        "[ 0] I am 0\n[ 0] bye\n[ 3] I am 3\n[ 3] bye\n[11] I am 11\n[11] bye\n"
    )


def test_logs_of_a_crash_end_with_the_batch_log_and_failed_rank(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("step 1\n", 0)
    attempt.printed("Traceback (most recent call last):\nValueError: nan\n", 3).failed(exit=1)
    builder.batch_log("srun: error: n1: task 3: Exited with exit code 1\n")
    text = printed(builder.run)
    assert text.startswith("step 1\n==> the batch script: runs/digits/slurm-7.out <==\nsrun: error")
    assert text.endswith("==> rank 3 failed first: clusterdp logs runs/digits --rank 3 <==\n")


def test_logs_of_a_job_without_attempts_show_its_batch_log(builder: RunBuilder) -> None:
    builder.submitted().batch_log("bash: module: command not found\n")
    assert printed(builder.run) == "bash: module: command not found\n"


def test_logs_of_a_missing_attempt_or_rank_fail_with_its_name(builder: RunBuilder) -> None:
    with pytest.raises(RunError, match="no attempt has begun"):
        printed(builder.submitted().run)
    builder.attempt().printed("x\n", 0).printed("x\n", 1)
    with pytest.raises(RunError, match=r"--rank 7: .*ranks 0-1"):
        printed(builder.run, rank="7")
    with pytest.raises(RunError, match=r"--attempt 9: .*1 \(7\.0\)"):
        printed(builder.run, attempt="9")


class Script:
    """Instead of sleeping, the next thing happens."""

    def __init__(self, *happenings: object):
        self.left = list(happenings)

    def __call__(self, seconds: float) -> None:
        assert seconds > 0
        happening = self.left.pop(0) if self.left else pytest.fail("nothing more happens, and it still waits")
        happening()  # type: ignore[operator]


def test_logs_follow_continues_across_attempts_until_the_run_ends(builder: RunBuilder) -> None:
    first = builder.submitted().attempt().printed("one\ntw")

    def requeue() -> None:
        first.printed("one\ntwo\nlast words")
        first.stopped(5).requeued("preempted")
        builder.attempt("7.1").printed("three\n")

    def finish() -> None:
        from tests.operate.builder import AttemptBuilder

        AttemptBuilder(builder, builder.run.attempt("7.1")).printed("three\nfour").finished()

    pace = Pace(sleep=Script(requeue, finish, lambda: None))
    assert printed(builder.run, follow=True, pace=pace) == (
        "one\ntwo\nlast words\n==> attempt 2 (7.1) <==\nthree\nfour"
    )


def test_logs_follow_all_finds_ranks_starting_later(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("a\n", 0)
    pace = Pace(sleep=Script(lambda: attempt.printed("b\n", 1), attempt.finished, lambda: None))
    assert printed(builder.run, every=True, follow=True, pace=pace) == "[0] a\n[1] b\n"


def test_logs_follow_prints_a_file_shared_by_two_attempts_once(builder: RunBuilder) -> None:
    """submitit appends to one file a rank and job; the attempts have symbolic links to it."""
    (builder.run.path / "submitit").mkdir()
    shared = builder.run.path / "submitit" / "7_0_log.out"
    shared.write_text("one\n")
    first = builder.submitted().attempt()
    first.files.rank_log(0).symlink_to(shared)

    def go_on() -> None:
        first.stopped(3).requeued("preempted")
        second = builder.attempt("7.1")
        second.files.rank_log(0).symlink_to(shared)
        shared.write_text("one\ntwo\n")
        second.finished()

    assert printed(builder.run, follow=True, pace=Pace(sleep=Script(go_on, lambda: None))) == (
        "one\ntwo\n==> attempt 2 (7.1) <==\n"
    )


def test_logs_finds_the_batch_log_of_submitit(builder: RunBuilder) -> None:
    (builder.run.path / "submitit").mkdir()
    (builder.run.path / "submitit" / "7_0_log.out").write_text("module: command not found\n")
    assert printed(builder.submitted().run) == "module: command not found\n"


def test_logs_follow_of_a_named_ended_attempt_ends_at_once(builder: RunBuilder) -> None:
    builder.submitted().attempt().printed("a\n").stopped(3).requeued("preempted")
    assert printed(builder.run, attempt="1", follow=True, pace=Pace(sleep=Script())) == "a\n"


def test_logs_follow_of_a_failed_job_without_attempts_prints_its_batch_log(
    builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted().batch_log("cannot write to /full\n")
    queue.answers("7|FAILED|NonZeroExitCode|n1")
    pace = Pace(settle_s=0, sleep=Script())
    assert printed(builder.run, follow=True, pace=pace) == "cannot write to /full\n"


@pytest.mark.parametrize("lines", [1, 200_000])
def test_closed_pipe_ends_logs_silently_with_exit_code_141(builder: RunBuilder, lines: int) -> None:
    """`clusterdp logs | head`: neither a traceback nor Python's own complaint when it flushes stdout at its end."""
    builder.submitted().attempt().printed("line\n" * lines)
    code = (
        "import sys; from pathlib import Path; from clusterdp.rundir import RunDir;"
        "from clusterdp.operate.logs.show_logs import show_logs;"
        f"sys.exit(show_logs(RunDir(Path({str(builder.run.path)!r}))))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_logs_follow_silently_with_exit_code_130(builder: RunBuilder) -> None:
    builder.submitted().attempt().printed("a\n")
    out = io.StringIO()
    pace = Pace(sleep=Script(lambda: signal.raise_signal(signal.SIGINT)))
    assert threading.current_thread() is threading.main_thread()
    assert show_logs(builder.run, Choice(follow=True), out, pace) == 130
    assert out.getvalue() == "a\n"


def test_tail_returns_whole_lines_and_restarts_after_truncation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == ""
    path.write_bytes("grün\nhal".encode())
    assert tail.read() == "grün\n"
    assert tail.read() == ""
    with path.open("ab") as file:
        file.write("b €\r 10 %\r 20".encode())
    assert tail.read() == "halb €\r 10 %\r"
    assert tail.read(final=True) == " 20"
    path.write_bytes(b"anew\n")
    assert tail.read() == "anew\n"
    path.write_bytes(b"x" * 100)
    assert tail.read(limit=40) == "x" * 40


def test_tail_never_splits_a_utf_8_character(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("€uro\n" * 50_000)
    tail, text = Tail(path), ""
    while piece := tail.read(final=True, limit=1001):
        text += piece
    assert text == "€uro\n" * 50_000
    path.write_text("€" * 5000)
    tail, text = Tail(path), ""
    while piece := tail.read(final=True, limit=1000):
        text += piece
    assert text == "€" * 5000


def test_last_lines_returns_the_end_of_a_long_missing_or_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(CHUNK)))
    assert last_lines(path, 2) == [f"line {CHUNK - 2}", f"line {CHUNK - 1}"]
    assert last_lines(tmp_path / "none", 2) == []
    os.truncate(path, 0)
    assert last_lines(path, 2) == []
