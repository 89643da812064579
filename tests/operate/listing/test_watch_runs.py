"""`clusterdp list --watch`: the table, then a line for each change, as a screen reader or a log file wants it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterdp import cli
from clusterdp.operate.listing.list_runs import Wanted
from clusterdp.operate.listing.watch_runs import ListedRuns, watch_runs
from clusterdp.operate.status.follow import Pace
from tests.operate.builder import RunBuilder
from tests.operate.conftest import FakeQueue


def watched(*changes: Callable[[], object]) -> tuple[list[str], list[str], list[float]]:
    """Lines of stdout and stderr, and all pauses, if each pause brings the next change, and the last Ctrl-C."""
    out, err, pauses, left = io.StringIO(), io.StringIO(), [], iter(changes)

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        change = next(left, None)
        if change is None:
            raise KeyboardInterrupt
        change()

    with pytest.raises(KeyboardInterrupt):
        watch_runs(Wanted(), out, err, sleep)
    return out.getvalue().splitlines(), err.getvalue().splitlines(), pauses


def nothing() -> None:
    pass


@pytest.fixture
def running(elsewhere: Path, queue: FakeQueue) -> RunBuilder:
    run = RunBuilder(elsewhere / "runs/first").submitted()
    run.attempt("7.0").trained(1, 40)
    queue.answers("7|RUNNING|None|n1")
    return run


def test_list_watch_prints_the_table_and_a_line_for_each_change(running: RunBuilder, queue: FakeQueue) -> None:
    out, err, _ = watched(
        nothing,
        lambda: queue.answers("7|PENDING|Priority|"),
        nothing,
        lambda: RunBuilder(running.run.path.with_name("second")).submitted("8"),
        lambda: queue.answers(error="slurm_load_jobs error: no answer"),
        nothing,
    )
    assert [line.split()[:2] for line in out[:2]] == [["run", "state"], ["first", "running"]]
    news = [line.partition("  ")[2] for line in out[2:]]
    assert news[0] == "first  waiting  40/400  loss 0.025  Priority: jobs of higher priority come first"
    assert news[1].startswith("second  vanished")
    assert [line.split()[:2] for line in news[2:]] == [["first", "running?"], ["second", "waiting?"]]
    assert len([line for line in err if "squeue: failed" in line]) == 1


def test_list_watch_calls_squeue_once_for_each_reading(running: RunBuilder, queue: FakeQueue) -> None:
    _, _, pauses = watched(nothing, nothing)
    assert len(queue.asked) == len(pauses) == 3
    assert min(pauses) >= Pace().ask_s


@pytest.mark.parametrize(("used_s", "pause_s"), [(0.01, 5.0), (0.06, 10.0), (25.0, 60.0)])
def test_pause_keeps_all_readings_below_one_percent_of_a_core(
    used_s: float, pause_s: float, running: RunBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, times = ListedRuns(Wanted()), iter([0.0, used_s])
    monkeypatch.setattr(os, "times", lambda: (next(times), 0.0, 0.0, 0.0, 0.0))
    assert runs.read().pause_s == pytest.approx(pause_s)


def test_unchanged_summary_is_the_same_object_in_the_next_reading(running: RunBuilder, queue: FakeQueue) -> None:
    over = RunBuilder(running.run.path.with_name("over")).submitted("9")
    over.attempt("9.0").finished()
    runs = ListedRuns(Wanted())
    before = {run["run"]: run for run in runs.read().runs}
    queue.answers("7|PENDING|Priority|")
    after = {run["run"]: run for run in runs.read().runs}
    assert after[str(over.run.path)] is before[str(over.run.path)]
    assert after[str(running.run.path)] is not before[str(running.run.path)]


def test_list_watch_refuses_json(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--watch", "--json"]) == 2
    assert (
        capsys.readouterr().err == "clusterdp: --json: does not go with --watch, which is for people. Leave one out.\n"
    )
