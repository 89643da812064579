"""`clusterdp goodput --all`: the hours of many runs, from their folders alone."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest

from clusterdp import cli
from clusterdp.operate.account.run_account import RunAccount, account_of, since
from clusterdp.operate.record.run_history import read_history
from clusterdp.rundir import RunDir
from tests.operate.account.test_account import WIDE, preempted_and_killed
from tests.operate.builder import T0, RunBuilder

RESOURCES = "resources: {{partition: {}, account: {}}}\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of 4 GPUs, in other partitions, and a run without an attempt."""
    for name, partition in (("a", "gpu"), ("b", "debug")):
        preempted_and_killed(RunBuilder(tmp_path / f"runs/{name}"))
        (tmp_path / f"runs/{name}/config.yaml").write_text(RESOURCES.format(partition, "vision"))
    RunBuilder(tmp_path / "runs/c").submitted("8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert cli.main(words.split()) == 0
    return capsys.readouterr().out


def account(path: Path) -> RunAccount:
    return account_of(read_history(RunDir(path)))


def test_costs_sum_all_runs_by_run_partition_account_and_cause(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = account(runs / "runs/a")
    said = printed(capsys, "goodput --all")
    assert said.startswith(f"{2 * one.hours:.3f}".rstrip("0") + " GPU-hours in 2 runs")
    tables = [[row.split() for row in block.splitlines()] for block in said.strip().split("\n\n")[1:]]
    assert [table[0] for table in tables] == [["GPU-hours", "lost", of] for of in "run partition account ended".split()]
    names = [{row[-1] for row in table[1:]} for table in tables]
    assert names[:3] == [{"runs/a", "runs/b"}, {"gpu", "debug"}, {"vision"}] and "preempted" in names[3]


def test_costs_as_csv_have_a_row_for_each_run_and_cause(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*csv.DictReader(io.StringIO(printed(capsys, "goodput --all --csv")))]
    one = account(runs / "runs/a")
    assert len(rows) == 2 * len(one.by_cause)
    assert sum(float(row["hours"]) for row in rows) == pytest.approx(2 * one.hours)
    assert sum(float(row["hours_lost"]) for row in rows) == pytest.approx(2 * one.lost_hours) != 0
    assert {row["account"] for row in rows} == {"vision"} and {row["unit"] for row in rows} == {"GPU"}


def test_hours_since_a_time_leave_out_the_time_before(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = account(runs / "runs/a")
    first = one.attempts[0]
    later = since(one, first.place.begin + first.place.seconds / 4)
    assert later.hours == pytest.approx(one.hours - first.hours / 4)
    assert since(one, 0.0).hours == pytest.approx(one.hours)
    assert since(one, T0 + 10_000).hours == 0
    day = time.strftime("%Y-%m-%dT%H:%M", time.localtime(T0 + 86400))
    assert printed(capsys, f"goodput --all --since {day}") == "No time that was allocated is on record.\n"


def test_costs_take_partition_and_account_of_the_job_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builder = RunBuilder(runs / "runs/d").submitted("9")
    attempt = builder.attempt("9.0", awake=T0, partition="low", account="theirs", **WIDE)
    builder.passes(3600)
    attempt.finished(120).exited()
    (runs / "runs/d/config.yaml").write_text(RESOURCES.format("gpu", "vision"))
    rows = [*csv.DictReader(io.StringIO(printed(capsys, "goodput --all --csv")))]
    (own,) = [row for row in rows if row["run"].endswith("runs/d")]
    assert (own["partition"], own["account"]) == ("low", "theirs")


def test_list_of_all_runs_ends_with_their_hours(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(printed(capsys, "list --all --json"))
    hours = sum(run["hours"] or 0.0 for run in listed)
    assert hours == pytest.approx(2 * account(runs / "runs/a").hours)
    last = printed(capsys, "list --all").splitlines()[-1]
    assert last.startswith(f"{hours:.3f}".rstrip("0") + " GPU-hours") and "goodput --all" in last
    assert "GPU-hours" not in printed(capsys, "list")


@pytest.mark.parametrize("words", ["goodput runs/a --all", "goodput --all --json", "goodput --since never"])
def test_wrong_words_for_costs_are_one_line(runs: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert cli.main(words.split()) == 2
    assert capsys.readouterr().err.count("\n") == 1
