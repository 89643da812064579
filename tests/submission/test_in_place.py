"""A restart in place: after a fault the batch program starts the step again in the same job, on the same nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from clusterdp.batch.decide.history import History
from clusterdp.batch.decide.policy import not_in_place, restarts_in_place
from clusterdp.batch.files.rules import Policy, Rules
from tests.submission.conftest import RunScript, Stubs, cause, last_event, ledger, requeues

# As a real one with --kill-on-bad-exit=0: reports a failed task, here first that in $STUBS/how, and kills on TERM.
SRUN = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1
said=
[ ! -e "$STUBS/how" ] || said="srun: error: n2: task 1: $(cat "$STUBS/how")"
"$@" &
trap 'kill -KILL $!; exit 137' TERM
[ -z "$said" ] || echo "$said" >&2
wait $!; code=$?
[ $code = 0 ] || [ -e "$STUBS/silent" ] || echo "srun: error: n1: task 0: Exited with exit code $code" >&2
exit $code
"""
IN_PLACE = Rules(in_place=True, warned_s=90)
DONE_LATER = 'echo "$CLUSTERDP_ATTEMPT $MASTER_PORT $CLUSTERDP_LOGS" >>$CLUSTERDP_RUN_DIR/lives; '
SAVES = "echo 5 >$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/saved; "


@pytest.fixture(autouse=True)
def srun(stubs: Stubs) -> None:
    (stubs.folder / "srun").write_text(SRUN)


def program(lines: str, **restart: Any) -> dict[str, object]:
    """A program of these bash lines, which notes each of its lives."""
    return {"command": ["bash", "-c", DONE_LATER + lines], "restart": {"in_place": True, **restart}}


def lives(tmp_path: Path) -> list[list[str]]:
    return [line.split() for line in (tmp_path / "run/lives").read_text().splitlines()]


@pytest.mark.parametrize(
    ("cause", "since", "saved", "left_s", "expected"),
    [
        ("crash", (), False, None, True),
        ("hung", (), False, 1000, True),
        ("memory", (), False, None, False),
        ("disk", (), False, None, False),
        ("node-lost", (), False, None, False),
        ("crash", ("7.0",), False, None, False),  # the second attempt of this allocation without a checkpoint
        ("crash", ("7.0",), True, None, True),
        ("crash", ("6.0", "6.1"), False, None, True),  # attempts of other allocations do not count
        ("crash", ("7.1", "70.0"), False, None, True),
        ("crash", ("7.0.1",), False, None, False),
        ("crash", (), False, 90, False),  # a new step would not get the warning
        ("crash", (), False, 91, True),
    ],
)
def test_restart_in_place_depends_on_cause_saves_and_time_left(
    cause: str, since: tuple[str, ...], saved: bool, left_s: float | None, expected: bool
) -> None:
    allows = restarts_in_place(cause, IN_PLACE)
    assert (allows and not not_in_place(cause, "7.0", saved, History(since=since), IN_PLACE, left_s)) is expected
    assert not restarts_in_place(cause, Rules())


def test_lost_node_restarts_in_place_with_spare_nodes_alone() -> None:
    rules = IN_PLACE._replace(spare_nodes=1)
    history = History(since=("7.0", "7.0.1"))
    assert restarts_in_place("node-lost", rules)
    assert not restarts_in_place("node-lost", IN_PLACE)
    assert not not_in_place("node-lost", "7.0", False, history, rules, None)
    assert not_in_place("node-lost", "7.0", False, history, rules, 90)
    assert not_in_place("crash", "7.0", False, history, rules, None)


def test_pause_longer_than_slurms_own_is_waited_in_the_queue() -> None:
    for wait_s, expected in ((120, ""), (121, "the 121 s of restart.crash.wait_s pass in the queue")):
        rules = IN_PLACE._replace(policies={"crash": Policy(wait_s=wait_s)})
        assert not_in_place("crash", "7.0", False, History(), rules, None) == expected


def test_crashed_step_restarts_with_another_name_port_and_log_folder(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    done = run_script(program("[ $CLUSTERDP_ATTEMPT = 7.0.1 ] || exit 9"))
    assert done.returncode == 0
    (first, port, logs), (second, other, new_logs) = lives(tmp_path)
    assert (first, second) == ("7.0", "7.0.1")
    assert int(port) != int(other)
    assert new_logs == logs.replace("7.0", "7.0.1")
    assert requeues(stubs) == []
    assert [cause(tmp_path, name) for name in (first, second)] == ["start", "done"]
    assert ledger(tmp_path) == [
        ("started", None),
        ("exited", None),
        ("failed", "start"),
        ("restarted", "start"),
        ("started", None),
        ("exited", None),
        ("finished", "done"),
    ]


def test_second_attempt_without_newer_checkpoint_goes_through_the_queue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    done = run_script(program("exit 9"))
    assert done.returncode == 0
    assert done.stderr.count("no restart in place: 2 attempts in this allocation have saved nothing.") == 1
    assert [name for name, *_ in lives(tmp_path)] == ["7.0", "7.0.1"]
    assert requeues(stubs) == ["requeue 7"]
    run_script(program("exit 9", max_crashes=9), restart=1)
    assert [name for name, *_ in lives(tmp_path)][2:] == ["7.1", "7.1.1"]


def test_saving_attempts_restart_in_place_until_max_crashes(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    assert run_script(program(SAVES + "exit 9", max_crashes=3)).returncode == 9
    assert [name for name, *_ in lives(tmp_path)] == ["7.0", "7.0.1", "7.0.2", "7.0.3"]
    assert requeues(stubs) == []
    assert last_event(tmp_path, "7.0.3")["event"] == "failed"


def test_same_error_in_two_attempts_ends_the_run_on_the_only_node(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    lines = 'echo "ValueError: no such layer" >>$CLUSTERDP_LOGS/rank-00000.out; exit 1'
    assert run_script(program(lines)).returncode == 1
    assert [name for name, *_ in lives(tmp_path)] == ["7.0", "7.0.1"]
    assert requeues(stubs) == []


@pytest.mark.parametrize(
    ("state", "more", "requeued"),
    [
        (("PREEMPTED", "None"), {}, False),
        (("RUNNING", "None"), {"preempt_time": "2026-01-01T00:00:00"}, True),
        (("CANCELLED", "None"), {}, False),
        (("RUNNING", "None"), {"restarts": 1}, False),
    ],
    ids=["ended", "in its grace time", "cancelled", "requeued by others"],
)
def test_job_about_to_end_does_not_restart_its_step(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, state: tuple[str, str], more: dict[str, Any], requeued: bool
) -> None:
    stubs.answer(*state, **more)
    run_script(program("exit 9"))
    assert len(lives(tmp_path)) == 1
    assert bool(requeues(stubs)) is requeued


def test_drained_node_is_left_through_the_queue(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    (stubs.folder / "down").write_text("n1\n")
    run_script(program("exit 9"))
    assert len(lives(tmp_path)) == 1
    assert requeues(stubs) == ["requeue 7"]
    assert any("drain" in call for call in stubs.calls("sinfo"))


@pytest.mark.parametrize("code", [75, 126, 127])
def test_request_or_missing_program_goes_through_the_queue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, code: int
) -> None:
    said = run_script(program(f"exit {code}")).stderr
    assert ("no restart in place: this node lacks the program." in said) is (code != 75)
    assert len(lives(tmp_path)) == 1
    assert requeues(stubs) == ["requeue 7"]


def test_restart_in_place_false_requeues_each_crash(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    run_script(program("exit 9", in_place=False))
    assert len(lives(tmp_path)) == 1
    assert requeues(stubs) == ["requeue 7"]


def test_restart_requeue_false_restarts_no_step(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    assert run_script(program("exit 9", requeue=False)).returncode == 75
    assert len(lives(tmp_path)) == 1


def test_run_cancelled_during_the_failing_step_does_not_restart(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    assert run_script(program("touch $CLUSTERDP_RUN_DIR/cancelled; exit 9")).returncode == 1
    assert len(lives(tmp_path)) == 1


def test_late_outcome_of_a_failed_attempt_does_not_count(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    late = "echo 'done finished 9' >$CLUSTERDP_RUN_DIR/attempts/7.0/outcome; "
    run_script(program(f"[ $CLUSTERDP_ATTEMPT = 7.0 ] || {late}exit 9"))
    assert run_script(program("exit 0"), restart=1).returncode == 0
    assert [name for name, *_ in lives(tmp_path)] == ["7.0", "7.0.1", "7.1"]


@pytest.mark.parametrize(
    ("how", "preempt_time", "ends"),
    [
        ("Killed", "None", True),
        ("Exited with exit code 1", "None", True),
        ("Exited with exit code 75", "None", False),  # it has saved, and others may still save
        ("Exited with exit code 143", "None", False),
        ("Terminated", "None", False),  # by a signal after which others may save
        ("Killed", "2026-01-01T00:00:00", False),  # in the grace time of a preemption
    ],
)
def test_first_failed_task_ends_the_others_unless_they_may_save(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, how: str, preempt_time: str, ends: bool
) -> None:
    (stubs.folder / "how").write_text(how)
    stubs.answer("RUNNING", "None", preempt_time=preempt_time)
    lines = "[ $CLUSTERDP_ATTEMPT = 7.0 ] || exit 0; /bin/sleep 3; touch $CLUSTERDP_RUN_DIR/saving; exit 75"
    run_script(program(lines))
    assert (tmp_path / "run/saving").exists() is not ends
    assert (len(lives(tmp_path)) == 2) is ends


@pytest.mark.parametrize("seconds", [30, 3000])
def test_tasks_go_on_for_longer_near_the_end_of_the_time(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, seconds: int
) -> None:
    (stubs.folder / "how").write_text("Exited with exit code 1")
    job = stubs.folder / "job"
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + seconds))
    job.write_text(job.read_text() + f"   EndTime={end} Deadline=N/A\n")
    values = program("[ $CLUSTERDP_ATTEMPT = 7.0 ] || exit 0; /bin/sleep 3; touch $CLUSTERDP_RUN_DIR/saving; exit 1")
    run_script({**values, "launch": {"signal": "USR2@20"}})
    assert (tmp_path / "run/saving").exists() is (seconds == 30)
    assert (len(lives(tmp_path)) == 1) is (seconds == 30)


def test_srun_without_word_of_a_failed_task_leads_to_the_queue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    (stubs.folder / "silent").touch()
    run_script(program("exit 9"))
    assert len(lives(tmp_path)) == 1
    assert requeues(stubs) == ["requeue 7"]


def test_task_outliving_kill_leads_to_the_queue(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    said = "srun: error: Timed out waiting for job step to complete"
    srun = stubs.folder / "srun"
    srun.write_text(SRUN.replace("exit $code", f'echo "{said}" | tee -a "$OUTPUT" >&2; exit $code'))
    (tmp_path / "run").mkdir()
    run_script(program("exit 9"), OUTPUT=str(tmp_path / "run/slurm-7.out"))
    assert len(lives(tmp_path)) == 1
    assert requeues(stubs) == ["requeue 7"]


def test_port_taken_in_the_first_step_leaves_no_code_for_the_second(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    (stubs.folder / "how").write_text("Exited with exit code 98")
    taken = "rm $STUBS/how; echo EADDRINUSE >>$CLUSTERDP_LOGS/rank-00000.out; exec /bin/sleep 60"
    lines = f"[ ! -e $STUBS/how ] || {{ {taken}; }}; exit 0"
    assert run_script(program(lines)).returncode == 0
    assert [name for name, *_ in lives(tmp_path)] == ["7.0", "7.0"]
    assert cause(tmp_path) == "done"
