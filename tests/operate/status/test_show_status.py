from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from clusterdp.operate.status.show_status import show_status
from clusterdp.rundir import RunDir
from tests.operate.builder import RunBuilder, preempted_once
from tests.operate.conftest import FakeQueue


def status(run: RunDir, now: float) -> str:
    out = io.StringIO()
    show_status(run, out, now=now)
    return out.getvalue()


def test_status_of_a_running_run_has_step_checkpoint_and_time_left(elsewhere: Path, queue: FakeQueue) -> None:
    builder = preempted_once(elsewhere / "r")
    queue.answers("7|RUNNING|None|n[1-2]")
    assert "step   240 of 400 (60 %)" in status(builder.run, builder.now + 60).splitlines(), "no step for too long"
    text = status(builder.run, builder.now + 4)
    lines = text.splitlines()
    assert lines[0] == "digits  running"
    assert "job    7 on n[1-2]" in lines
    assert "step   240 of 400 (60 %), about 12 s left" in lines
    assert "saved  step 120, 19 s ago" in lines
    assert "last   loss 0.004167, 4 s ago" in lines
    first, second = (line.split() for line in lines if line.startswith(("1 ", "2 ")))
    assert first[-5:] == ["preempted", "at", "step", "120,", "saved"]
    assert (second[-2], second[-1]) == ("120-240", "running")
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in text


def test_status_names_the_phase_of_a_training(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().trained(1, 9, total=10).trained(10, 12, total=20, phase="finetune")
    queue.answers("7|RUNNING|None|n1")
    lines = status(builder.run, builder.now).splitlines()
    assert "step   12 of 20 (60 %), phase finetune, about 1 s left" in lines
    assert not [line for line in lines if line.startswith("last") and "finetune" in line]


def test_status_of_a_resized_run_has_its_ranks_by_attempt(builder: RunBuilder, queue: FakeQueue) -> None:
    queue.answers("7|RUNNING|None|n1")
    builder.submitted().attempt().trained(1, 9).stopped(9).requeued("preempted")
    second = builder.attempt("7.1").restored(9).trained(10, 12)
    assert "ranks" not in status(builder.run, builder.now)
    for samples, words in ((32, "; a step has 32 samples, as before"), (24, "; a step had 32 samples, and has 24")):
        second.restored(9, ranks=3, saved_by=4, samples=samples, saved_samples=32)
        lines = status(builder.run, builder.now).splitlines()
        assert f"size   3 ranks since attempt 2, 4 before{words}" in lines
    rows = [line.split() for line in lines if line.startswith(("attempt", "1 ", "2 "))]
    assert [row[-4:] for row in (rows[0], rows[2])] == [
        ["lasted", "steps", "ranks", "ended"],
        ["4", "->", "3", "running"],
    ]
    assert "->" not in rows[1]


def test_status_of_a_requeued_job_has_its_earliest_start(builder: RunBuilder, queue: FakeQueue) -> None:
    builder.submitted().attempt().stopped(9).requeued("preempted")
    queue.answers("7|PENDING|BeginTime|")
    queue.write("scontrol", "echo 'JobId=7 StartTime=2023-11-14T22:15:20 Partition=main'\n")
    text = status(builder.run, builder.now)
    assert "BeginTime: starts at " in text
    assert ":15:20 at the earliest" in text
    assert len(queue.asked) == 2
    queue.write("scontrol", "exit 1\n")
    assert "BeginTime: may not start before its time" in status(builder.run, builder.now)
    queue.answers("7|PENDING|Priority|")
    before = len(queue.asked)
    assert "Priority: jobs of higher priority" in status(builder.run, builder.now)
    assert len(queue.asked) == before + 1


def test_status_names_lost_steps_the_crash_and_the_resume_command(builder: RunBuilder) -> None:
    builder.submitted().attempt().trained(1, 50).saved(50).trained(51, 60).requeued("crash")
    builder.attempt("7.1").restored(50).trained(51, 60).failed(exit=139)
    text = status(builder.run, builder.now)
    assert "digits  failed" in text
    assert "lost   10 steps had to be trained again" in text
    assert "crashed at step 60, 10 steps lost" in text
    assert "crashed (exit 139) at step 60" in text
    assert "clusterdp resume runs/digits" in text


def test_status_without_squeue_or_events_is_waiting_with_the_reason(builder: RunBuilder) -> None:
    assert "digits  waiting (nothing on record of a job" in status(builder.run, builder.now)
    builder.submitted()
    assert "digits  waiting (as last recorded; there is no squeue here" in status(builder.run, builder.now)


def test_status_of_a_cancelled_run_shows_its_completing_job_as_still_ending(
    builder: RunBuilder, queue: FakeQueue
) -> None:
    builder.submitted().attempt()
    queue.answers("7|COMPLETING|None|n1")
    assert "running (completing); cancelled, it is still ending" in status(builder.cancelled().run, builder.now)


def test_status_json_has_state_job_and_steps(elsewhere: Path, queue: FakeQueue) -> None:
    queue.answers("7|RUNNING|None|n[1-2]")
    out = io.StringIO()
    show_status(preempted_once(elsewhere / "r").run, out, as_json=True)
    data = json.loads(out.getvalue())
    assert (data["state"], data["job"], data["slurm_state"], data["over"]) == ("running", "7", "RUNNING", False)
    assert (data["step"], data["total"], data["steps_lost"]) == (240, 400, 0)
    assert data["saved_step"] == 120
    assert [a["cause"] for a in data["attempts"]] == ["preempted", None]


def test_status_uses_colours_unless_no_color_is_set(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def text() -> str:
        out = Terminal()
        show_status(run, out)
        return out.getvalue()

    run = preempted_once(elsewhere / "r").run
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in text()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in text()


def test_status_of_sixty_attempts_prints_only_the_newest_ones(builder: RunBuilder) -> None:
    builder.submitted()
    for i in range(60):
        builder.attempt(f"7.{i}").requeued("preempted")
    text = status(builder.run, builder.now)
    assert len(text.splitlines()) < 40
    assert "40 older" in text


def test_status_imports_no_heavy_module(elsewhere: Path, tmp_path: Path) -> None:
    """It is typed more often than anything else, on login nodes where an import takes its time."""
    import subprocess

    preempted_once(elsewhere / "r").run  # noqa: B018
    code = (
        "import sys; from clusterdp.operate.find.find_run import find_run; "
        "from clusterdp.operate.status.show_status import show_status;"
        "show_status(find_run('r'), sys.stdout);"
        "print(sorted({'torch', 'rich', 'yaml', 'omegaconf', 'fsspec', 'jinja2', 'submitit'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("begins", [True, False], ids=["in-a-pause", "in-the-queue"])
def test_status_of_a_stopped_run_has_no_error_of_an_earlier_attempt(builder: RunBuilder, begins: bool) -> None:
    failed = builder.submitted().attempt("7.0").trained(1, 20).exited(1)
    failed.printed("ValueError: older\n")
    builder.batch_log("srun: error: n1: task 0: Exited with exit code 1\n")
    if begins:
        failed.restarted("crash")
        builder.attempt("7.0.1").failed("stopped", reason="user")
    else:
        failed.requeued("crash")
    builder.run.stop.write_text("")
    shown = status(builder.run, builder.now)
    assert shown.startswith("digits  stopped (")
    assert "\nwhy " not in shown
