from __future__ import annotations

import io
import json
import os
from typing import Any

import pytest

from clusterdp.cli.command_line import main
from clusterdp.operate.account.goodput import show_goodput
from clusterdp.operate.account.run_account import brief, hours
from clusterdp.operate.status.show_status import show_status
from tests.operate.account.test_account import preempted_and_killed
from tests.operate.builder import T0, RunBuilder
from tests.operate.conftest import FakeQueue

NUMBER = (int, float)
NONE = type(None)
ACCOUNT: dict[str, Any] = {
    "name": str,
    "run": str,
    "state": str,
    "goodput": NUMBER,
    "unit": str,
    "hours": NUMBER,
    "hours_lost": NUMBER,
    "queue_s": NUMBER,
    "allocated_s": NUMBER,
    "parts_s": dict,
    "causes": list,
    "attempts": list,
}
CAUSE: dict[str, Any] = {"cause": str, "attempts": int, "hours": NUMBER, "hours_lost": NUMBER}
ATTEMPT: dict[str, Any] = {
    "name": str,
    "number": int,
    "cause": str,
    "nodes": str,
    "cores": int,
    "gpus": int,
    "started_at": NUMBER,
    "ended_at": NUMBER,
    "end_on_record": bool,
    "queue_s": NUMBER,
    "allocated_s": NUMBER,
    "parts_s": dict,
    "steps": int,
    "steps_lost": int,
    "done_again_s": NUMBER,
}
PARTS = ["startup", "restore", "kept", "lost", "saves", "evaluation", "running", "shutdown", "unseen"]


def printed(builder: RunBuilder, **options: Any) -> str:
    out = io.StringIO()
    show_goodput(builder.run, out, **options)
    return out.getvalue()


def has(data: dict[str, Any], schema: dict[str, Any]) -> bool:
    return list(data) == list(schema) and all(isinstance(data[key], kind) for key, kind in schema.items())


def test_goodput_prints_a_table_of_attempts_causes_and_lost_time(builder: RunBuilder) -> None:
    preempted_and_killed(builder)
    lines = printed(builder).splitlines()
    assert lines[:6] == [
        "digits  done",
        "run        runs/digits",
        "goodput    29.4 % of the allocated time became steps, 120 of them",
        "allocated  6 min 41 s in 3 attempts, 0.446 GPU-hours",
        "lost       20 steps, which took 19 s",
        "queue      1 min 39 s waited, which is not allocated time",
    ]
    assert lines[7].split() == "queue start-up restore steps lost saves eval shutdown unseen ended nodes".split()
    assert lines[9].split() == "2 48s 23s 10s 39s 19s 1.0s - - 1m48s lost n[1-2]".split()
    assert lines[11].split()[0] == "all"
    shares = [float(word) for word in lines[12].split()[1:]]
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert lines[16].split()[:4] == ["1", "0.222", "0.186", "lost"]
    assert not [line for line in lines if line != line.rstrip() or "\x1b" in line]


@pytest.mark.parametrize(("columns", "nodes"), [(80, False), (120, True)])
def test_goodput_table_fits_the_terminal_and_drops_nodes_at_80_columns(
    builder: RunBuilder, monkeypatch: pytest.MonkeyPatch, columns: int, nodes: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    preempted_and_killed(builder)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    monkeypatch.setattr("sys.stdout", out)
    show_goodput(builder.run, out)
    table = out.getvalue().split("\n\n")[1].splitlines()
    assert max(map(len, out.getvalue().splitlines())) <= max(columns, 100)
    assert max(map(len, table)) <= columns
    assert ("nodes" in table[0]) == nodes


def test_goodput_json_has_the_expected_keys_and_types(builder: RunBuilder) -> None:
    preempted_and_killed(builder)
    data = json.loads(printed(builder, as_json=True))
    assert has(data, ACCOUNT)
    assert all(has(cause, CAUSE) for cause in data["causes"])
    assert all(has(attempt, ATTEMPT) for attempt in data["attempts"])
    for each in (data, *data["attempts"]):
        assert list(each["parts_s"]) == PARTS
        assert sum(each["parts_s"].values()) == pytest.approx(each["allocated_s"])


def test_unknown_goodput_is_null_in_json_and_explained_in_the_text(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted(entry="").attempt()
    queue.answers("7|RUNNING|None|n1")
    data = json.loads(printed(builder, as_json=True, now=builder.now + 60))
    assert (data["goodput"], data["unit"], data["hours"], data["hours_lost"]) == (None, None, None, None)
    (attempt,) = data["attempts"]
    assert (attempt["ended_at"], attempt["cause"], attempt["end_on_record"], attempt["gpus"]) == (
        None,
        None,
        False,
        None,
    )
    assert attempt["parts_s"]["running"] == 60
    text = printed(builder, now=builder.now + 60)
    assert "goodput    not known: its program does not say which time became steps" in text
    assert "running: its program does not say what it does; job.loop() does" in text


def test_goodput_offers_sacct_for_an_attempt_with_an_unrecorded_end(builder: RunBuilder) -> None:
    attempt = builder.submitted().attempt().spent(5, startup=0, steps=1)
    builder.attempt("7.1").finished()
    attempt.files.cause.write_text("lost\n")
    text = printed(builder)
    assert "the end of attempt 1 is not on record: `sacct --duplicates -j 7` may know it" in text


def test_goodput_of_a_run_without_attempts_reports_missing_records(builder: RunBuilder) -> None:
    assert "Nothing is on record yet" in printed(builder.submitted())


def test_goodput_table_of_60_attempts_omits_the_oldest_40(builder: RunBuilder) -> None:
    builder.submitted()
    for i in range(60):
        builder.attempt(f"7.{i}").requeued("preempted")
    text = printed(builder)
    assert len(text.splitlines()) < 40
    assert "40 older: --json has them" in text


def test_status_prints_a_line_with_goodput_and_lost_hours(builder: RunBuilder) -> None:
    preempted_and_killed(builder)
    out = io.StringIO()
    show_status(builder.run, out, now=T0 + 600)
    words = "time   goodput 29.4 %: 1 min 58 s of 6 min 41 s became steps; 0.446 GPU-hours, 0.222 lost"
    assert words in out.getvalue().splitlines()


def test_goodput_takes_an_absolute_or_relative_run_folder(
    builder: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    preempted_and_killed(builder)
    assert main(["goodput", str(builder.run.path)]) == 0
    assert "goodput    29.4 %" in capsys.readouterr().out
    os.chdir(builder.run.path.parent.parent)
    assert main(["goodput", "runs/digits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "GPU-hours"


def test_times_and_hours_of_goodput_are_printed_in_short_form() -> None:
    values = (0, 0.04, 4.26, 9.96, 59.6, 252, 3599.7, 3725, 100_000, 4e6)
    assert [brief(v) for v in values] == [
        "-",
        "-",
        "4.3s",
        "10s",
        "1m00s",
        "4m12s",
        "1h00m",
        "1h02m",
        "1d03h",
        "46d07h",
    ]
    assert [hours(v) for v in (0, 0.0123, 9.5, 12.34, 69000)] == ["0", "0.012", "9.5", "12.3", "69000.0"]
