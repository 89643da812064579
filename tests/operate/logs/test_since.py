from __future__ import annotations

import os
import time

from clusterdp.rundir import RunDir
from clusterdp.rundir.tail import CHUNK
from tests.operate.builder import RunBuilder
from tests.operate.logs.test_merged import at, of_ranks
from tests.operate.logs.test_show_logs import printed


def since(run: RunDir, when: str, **options: object) -> str:
    now = time.mktime((2023, 11, 15, 8, 1, 0, 0, 0, -1))
    return printed(run, since=when, now=now, **options)


def touched(run: RunDir, rank: int, second: int) -> None:
    when = time.mktime((2023, 11, 15, 8, 0, second, 0, 0, -1))
    os.utime(run.attempt("7.0").rank_log(rank), (when, when))


def test_logs_since_prints_newer_lines_and_skips_older_files(builder: RunBuilder) -> None:
    run = of_ranks(builder, at(1, "a") + at(20, "b") + "b2\n" + at(30, "c"), at(50, "d"))
    touched(run, 0, 30)
    touched(run, 1, 2)
    assert (
        since(run, "08:00:20", every=True) == "[0] 2023-11-15 08:00:20,000 b\n[0] b2\n[0] 2023-11-15 08:00:30,000 c\n"
    )
    assert since(run, "35s") == at(30, "c")
    assert since(run, "2023-11-15T08:00:59") == "==> nothing was printed since 08:00:59 <==\n"


def test_logs_since_prints_undated_lines_with_a_warning(builder: RunBuilder) -> None:
    run = of_ranks(builder, "a\nb\n", at(1, "a") + "b\n")
    touched(run, 0, 30)
    touched(run, 1, 30)
    assert since(run, "08:00:20", every=True) == (
        "==> ranks 0-1: some of their lines have no times and may be from before 08:00:20 <==\n[0] a\n[0] b\n[1] b\n"
    )


def test_logs_since_finds_the_first_newer_line_in_a_long_log(builder: RunBuilder) -> None:
    text = at(1, "a") + "".join(at(5, "x" * 200) for _ in range(2000)) + at(30, "c") + "".join(at(40, "d" * 200) * 2000)
    run = of_ranks(builder, text)
    touched(run, 0, 40)
    assert since(run, "08:00:30") == text[text.index(at(30, "c")) :]


def test_logs_since_finds_a_timestamp_split_between_two_reads(builder: RunBuilder) -> None:
    line, more = at(30, "c"), at(40, "d" * 1000)
    rest = CHUNK - len(line) + 5  # the second read from the end begins 5 letters into the line
    text = at(1, "a") + line + more * (rest // len(more))
    text += at(45, "e" * (rest - (len(text) - len(at(1, "a")) - len(line)) - len(at(45, ""))))
    run = of_ranks(builder, text)
    touched(run, 0, 50)
    assert since(run, "08:00:30") == text.removeprefix(at(1, "a"))
