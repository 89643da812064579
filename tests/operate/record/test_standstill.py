"""What status and watch say of a run that makes no progress, and of ranks that are slow."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from clusterdp.operate.record.run_history import read_history
from clusterdp.operate.status.show_status import show_status
from clusterdp.operate.status.watch import event_line
from tests.operate.builder import AttemptBuilder, RunBuilder
from tests.operate.conftest import FakeQueue

SAID = "rank 3 on n2: step 120, in backward; the others wait in step 121, in backward"


@pytest.fixture
def attempt(builder: RunBuilder, queue: FakeQueue) -> AttemptBuilder:
    queue.answers("7|RUNNING|None|n[1-2]")
    return builder.submitted().attempt().trained(1, 119)


def status(attempt: AttemptBuilder, *, as_json: bool = False) -> Any:
    out = io.StringIO()
    show_status(attempt.builder.run, out, as_json, now=attempt.builder.now)
    return json.loads(out.getvalue()) if as_json else out.getvalue().splitlines()


def hangs(attempt: AttemptBuilder) -> None:
    about = {"ranks": [3], "nodes": "n2", "step": 119, "phase": "backward", "reason": SAID}
    attempt.builder.event("hang", attempt.files.name, "hang0", **about)


def test_status_names_a_hang_until_progress_resumes(attempt: AttemptBuilder) -> None:
    hangs(attempt)
    assert f"hang   {SAID}" in status(attempt)
    told = status(attempt, as_json=True)
    assert (told["hang"]["ranks"], told["hang"]["nodes"], told["step"]) == ([3], "n2", 119)
    history = read_history(attempt.builder.run)
    lines = [event_line(event, history) for event in history.events]
    assert f"attempt 1 makes no progress: {SAID}" in lines
    attempt.trained(120, 121)
    assert not [line for line in status(attempt) if line.startswith("hang")]


def test_status_names_silent_nodes_until_they_are_alive(attempt: AttemptBuilder) -> None:
    attempt.builder.event("silent", attempt.files.name, "batch", nodes="n2,n3")
    since = attempt.builder.now
    attempt.builder.event("silent-ended", attempt.files.name, "batch", nodes="n3")
    (line,) = [line for line in status(attempt) if line.startswith("silent")]
    assert line.endswith("): down, cut off from the network, or all processes are stopped")
    assert line.startswith("silent no sign of life from n2 (since ") and "n3" not in line
    assert status(attempt, as_json=True)["silent"] == [{"node": "n2", "since_at": since}]
    history = read_history(attempt.builder.run)
    lines = [event_line(event, history) for event in history.events]
    assert "no sign of life from n2,n3: down, cut off from the network, or all processes are stopped" in lines
    assert "alive again: n3" in lines
    attempt.builder.event("silent-ended", attempt.files.name, "batch", nodes="n2")
    assert not [line for line in status(attempt) if line.startswith("silent")]


def test_status_prints_recorded_stragglers_as_slow_ranks(attempt: AttemptBuilder) -> None:
    slow = {"rank": 3, "node": "n2", "more_ms": 12.0, "share": 0.31, "most_in": "data"}
    attempt.files.times.write_text(json.dumps({"steps": 100, "stragglers": [slow]}))
    said = "rank 3 on n2 (12.0 ms a step longer than the median, 31 %, most of it in data)"
    assert f"slow   {said}" in status(attempt)
    assert status(attempt, as_json=True)["stragglers"] == [slow]


@pytest.mark.parametrize("failures", [["n2: left no result", "n3: GPU 2 gives a wrong product"], [], None, "x"])
def test_event_line_of_a_preflight_names_its_failed_nodes_if_any(attempt: AttemptBuilder, failures: Any) -> None:
    attempt.builder.event("preflight", attempt.files.name, "batch", seconds=3, failures=failures)
    history = read_history(attempt.builder.run)
    expected = "attempt 1 failed the preflight: n2: left no result; n3: GPU 2 gives a wrong product"
    found = [line for line in (event_line(event, history) for event in history.events) if line and "preflight" in line]
    assert found == ([expected] if isinstance(failures, list) and failures else [])


@pytest.mark.parametrize("text", ["", "[]", '{"stragglers": 5}', '{"stragglers": [{"rank": "x"}]}', "[" * 9999])
def test_status_ignores_a_malformed_times_report(attempt: AttemptBuilder, text: str) -> None:
    attempt.files.times.write_text(text)
    assert not [line for line in status(attempt) if line.startswith("slow")]
