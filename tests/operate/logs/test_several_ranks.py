"""Several logs in one: by rank, with labels."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from clusterdp.operate.logs.choice import Choice
from clusterdp.operate.logs.show_logs import show_logs
from clusterdp.operate.output.formatting import CODES
from clusterdp.operate.status.follow import Pace
from clusterdp.rundir import RunDir
from tests.operate.builder import RunBuilder
from tests.operate.logs.test_show_logs import Script, printed
from tests.operate.output.test_terminal import Terminal

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: nan\n'


def at(second: int, text: str) -> str:
    return f"2023-11-15 08:00:{second:02},000 {text}\n"


def of_ranks(builder: RunBuilder, *texts: str) -> RunDir:
    attempt = builder.submitted().attempt()
    for rank, text in enumerate(texts):
        attempt.printed(text, rank)
    return builder.run


def test_lines_of_all_ranks_are_printed_rank_by_rank(builder: RunBuilder) -> None:
    run = of_ranks(builder, "a\n" + at(5, "e"), at(0, "z") + TRACEBACK + "end")
    assert printed(run, every=True) == (
        "[0] a\n"
        "[0] 2023-11-15 08:00:05,000 e\n"
        "[1] 2023-11-15 08:00:00,000 z\n"
        "[1] Traceback (most recent call last):\n"
        '[1]   File "train.py", line 3\n'
        "[1] ValueError: nan\n"
        "[1] end\n"
    )


def test_progress_bar_is_shown_in_its_last_state(builder: RunBuilder) -> None:
    long = "x" * 1_000_000
    run = of_ranks(builder, f" 1%\r 50%\r100%\r\n{long}\nend", "CRLF\r\nb\n")
    assert printed(run, every=True) == f"[0] 100%\n[0] {long}\n[0] end\n[1] CRLF\n[1] b\n"


def test_logs_rank_prints_the_named_ranks_and_reports_missing_ones(builder: RunBuilder) -> None:
    run = of_ranks(builder, "a\n", "b\n", "c\n", "d\n")
    assert printed(run, rank="0,2-9") == "==> there is no log of ranks 4-9 <==\n[0] a\n[2] c\n[3] d\n"
    assert printed(run, rank="1") == "b\n"


def test_rank_labels_are_coloured_on_terminals_unless_no_color_is_set(
    builder: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    run = of_ranks(builder, "\x1b[31mred\n", "b\n")
    text = printed(run, out=Terminal(), every=True)
    label = f"\x1b[{CODES['cyan']}m[0]\x1b[0m"
    assert text.startswith(f"{label} \x1b[31mred\x1b[0m\n") and f"\x1b[{CODES['yellow']}m[1]" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed(run, out=Terminal(), every=True) == "[0] red\n[1] b\n"


def test_logs_follow_prints_whole_lines_by_arrival(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("a\n", 0).printed("b\nha", 1)

    def later() -> None:
        attempt.printed("a\nc\n", 0).printed("b\nhalf\n", 1)

    text = printed(builder.run, Pace(sleep=Script(later, attempt.finished, lambda: None)), every=True, follow=True)
    assert text == "[0] a\n[1] b\n[0] c\n[1] half\n"


def test_logs_follow_with_n_starts_with_the_last_lines_of_each_log(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("a\nb\n", 0).printed("c\nd\n", 1)

    def more() -> None:
        attempt.printed("a\nb\ne\nf\n", 0).printed("late\nlater\n", 2)

    pace = Pace(sleep=Script(more, attempt.finished, lambda: None))
    text = printed(builder.run, pace, every=True, follow=True, last="1")
    assert text == "[0] b\n[1] d\n[0] e\n[0] f\n[2] late\n[2] later\n"


def test_logs_errors_follow_prints_each_error_once(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("fine\n", 0).printed("fine\n", 1)

    def fail() -> None:
        attempt.printed("fine\nERROR x\n", 0).printed("fine\nERROR x\n", 1)

    pace = Pace(sleep=Script(fail, lambda: None, lambda: None, attempt.finished, lambda: None))
    assert printed(builder.run, pace, errors=True, follow=True) == "ranks 0-1: ERROR x\n"


def test_logs_attempt_all_prints_a_heading_before_each_attempt(builder: RunBuilder) -> None:
    builder.submitted().attempt().printed("a\n").stopped(3).requeued("preempted")
    builder.attempt("7.1").printed("b\n").finished()
    both = "==> attempt 1 (7.0) <==\na\n==> attempt 2 (7.1) <==\nb\n"
    assert printed(builder.run, attempt="all") == both
    assert printed(builder.run, Pace(sleep=Script(lambda: None)), attempt="all", follow=True) == both


def test_logs_errors_screen_at_width_80_equals_its_golden_text(
    builder: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    texts = [at(1, "start") + at(9, "ERROR loss is nan") + TRACEBACK for _ in range(8)]
    texts[3] = at(2, "start") + at(8, "CRITICAL no data: /data/train")
    run = of_ranks(builder, *texts)
    builder.batch_log("srun: error: n1: task 3: Exited with exit code 1\n")
    assert printed(run, errors=True) == GOLDEN
    assert printed(run, errors=True, rank="3") == "rank 3: 2023-11-15 08:00:08,000 CRITICAL no data: /data/train\n"


GOLDEN = """\
batch script: srun: error: n1: task 3: Exited with exit code 1
ranks 0-2,4-7: 2023-11-15 08:00:09,000 ERROR loss is nan
Traceback (most recent call last):
  File "train.py", line 3
ValueError: nan

rank 3: 2023-11-15 08:00:08,000 CRITICAL no data: /data/train
"""


def test_logs_errors_reports_finding_no_error(builder: RunBuilder) -> None:
    run = of_ranks(builder, "fine\n")
    assert printed(run, errors=True) == "==> nothing looks like an error in attempt 1 <==\n"


def test_logs_n_prints_the_last_lines_of_each_log(builder: RunBuilder) -> None:
    run = of_ranks(builder, "a\nb\nc\n", at(1, "d") + "e\n")
    assert printed(run, last="2") == "b\nc\n"
    assert printed(run, last="1", every=True) == "[0] c\n[1] e\n"
    assert printed(run, last="0") == ""
    out = printed(run, terminal=True)
    assert out == "a\nb\nc\n"


def test_logs_on_a_terminal_prints_the_last_1000_lines(builder: RunBuilder) -> None:
    run = of_ranks(builder, "x\n" * 1500, "y\n")
    assert printed(run, terminal=True) == "==> the last 1000 lines; -n all prints all <==\n" + "x\n" * 1000
    assert printed(run, terminal=True, last="all") == printed(run) == "x\n" * 1500
    assert printed(run, terminal=True, every=True).count("x") == 500


def test_logs_reads_only_the_end_of_a_huge_log(builder: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_ranks(builder, "")
    log = run.attempt("7.0").rank_log(0)
    os.truncate(log, 10_000_000_000)
    with log.open("a") as file:
        file.write("\nlast but one\nlast\n")
    before = read_bytes()
    assert printed(run, last="2") == "last but one\nlast\n"
    assert read_bytes() - before < 1_000_000


def read_bytes() -> int:
    """By this process, so far. Linux counts them."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        pytest.skip("no /proc/self/io here")
    return int(text.split()[1])


def test_unreadable_rank_logs_are_named_together_and_readable_ones_printed(builder: RunBuilder) -> None:
    run = of_ranks(builder, "a\n")
    for rank in (1, 2, 3):
        run.attempt("7.0").rank_log(rank).mkdir()
    assert printed(run, every=True) == (
        "==> runs/digits/attempts/7.0/logs/rank-00001.out and those of ranks 2-3: cannot be read: Is a directory <==\n"
        "[0] a\n"
    )


def test_logs_follow_continues_after_a_log_is_deleted_or_truncated(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().printed("a\nb\n", 0).printed("c\n", 1)

    def vanish() -> None:
        attempt.files.rank_log(1).unlink()
        attempt.printed("d\n", 0)

    pace = Pace(sleep=Script(vanish, attempt.finished, lambda: None))
    assert printed(builder.run, pace, every=True, follow=True) == "[0] a\n[0] b\n[1] c\n[0] d\n"


def test_interrupted_logs_follow_prints_its_lines_and_exits_with_130(builder: RunBuilder) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    builder.submitted().attempt().printed("a\n", 0)
    out = io.StringIO()
    assert show_logs(builder.run, Choice.read(every=True, follow=True), out, Pace(sleep=Script(interrupt))) == 130
    assert out.getvalue() == "[0] a\n"
