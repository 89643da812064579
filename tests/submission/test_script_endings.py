"""What the script does when its ranks have ended: who requeues, and who does not.

Where it is wrong, a user loses a week, or finds that a cancelled job has come back.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, ledger, requeues, worker
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("outcome", "state", "reason", "preempt_time", "expected"),
    [
        ("requeue term 5", "RUNNING", "None", "2026-01-01T00:00:00", "preempted"),
        ("requeue time 5", "RUNNING", "None", "None", "timeout"),
        ("requeue term 5", "RUNNING", "None", "None", "signal"),
        ("requeue term 5", "COMPLETING", "TimeLimit", "None", "timeout"),
    ],
)
def test_attempt_saved_at_a_stop_is_requeued_as_preempted_timeout_or_signal(
    run_script: RunScript,
    stubs: Stubs,
    tmp_path: Path,
    outcome: str,
    state: str,
    reason: str,
    preempt_time: str,
    expected: str,
) -> None:
    stubs.answer(state, reason, preempt_time)
    done = run_script(worker(tmp_path, outcome))
    assert done.returncode == 0, done.stderr
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == expected
    assert ("requeued", expected) in ledger(tmp_path)


@pytest.mark.parametrize("outcome", ["requeue term 5", None])
@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PENDING"])
def test_completing_cancelled_or_pending_job_is_not_requeued_and_gets_no_cause(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str | None, state: str
) -> None:
    stubs.answer(state, "None")
    run_script(worker(tmp_path, outcome, code=0 if outcome else 1))
    assert requeues(stubs) == []
    assert cause(tmp_path) is None


def test_run_marked_cancelled_while_running_is_not_requeued(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    values = worker(tmp_path, "requeue term 5")
    python = tmp_path / "python"
    python.write_text(python.read_text().replace("mkdir", f"touch {tmp_path}/run/cancelled; mkdir"))
    done = run_script(values)
    assert done.returncode == 1
    assert requeues(stubs) == []
    assert cause(tmp_path) == "cancelled"


@pytest.mark.parametrize(
    ("mark", "code", "said"), [("cancelled", 1, "was cancelled"), ("stop", 75, "was asked to stop")]
)
def test_run_marked_as_cancelled_or_stopped_does_not_start_its_program(
    run_script: RunScript, tmp_path: Path, mark: str, code: int, said: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / mark).touch()
    done = run_script({"command": ["touch", "started"]})
    assert done.returncode == code
    assert said in done.stderr
    assert not (tmp_path / "run/code/started").exists()


@pytest.mark.parametrize(
    ("outcome", "code", "expected"), [("done finished 9", 0, 0), ("stop entry 0", 2, 2), ("stop cancelled 0", 0, 1)]
)
def test_done_or_stop_outcome_is_not_requeued_even_after_a_preemption(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str, code: int, expected: int
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    done = run_script(worker(tmp_path, outcome, code))
    assert done.returncode == expected
    assert requeues(stubs) == []
    again = run_script(worker(tmp_path, None), restart=1)  # Slurm requeued it all the same
    assert again.returncode == (0 if outcome.startswith("done") else 1)
    assert requeues(stubs) == []


def test_crash_is_requeued_until_restart_max_crashes(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    values = {**worker(tmp_path, None, code=9), "restart": {"max_crashes": 2}}
    codes = [run_script(values, restart=restart).returncode for restart in range(3)]
    assert codes == [0, 0, 9]
    assert requeues(stubs) == ["requeue 7"] * 2
    assert [cause(tmp_path, f"7.{n}") for n in range(3)] == ["start"] * 3


def test_crash_in_the_grace_time_is_recorded_as_preempted(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    run_script({**worker(tmp_path, None, code=137), "restart": {"max_crashes": 0}})
    assert cause(tmp_path) == "preempted"


def test_next_attempt_records_missing_causes_of_earlier_attempts(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("COMPLETING", "None")
    for restart, outcome in enumerate([None, "requeue term 3", "requeue time 3"]):
        run_script(worker(tmp_path, outcome), restart=restart)
    run_script(worker(tmp_path, "done finished 9"), restart=3)
    assert [cause(tmp_path, f"7.{n}") for n in range(4)] == ["lost", "preempted", "timeout", "done"]


def test_restart_max_no_progress_ends_the_run_and_a_checkpoint_resets_it(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("COMPLETING", "None")
    values = {**worker(tmp_path, None), "restart": {"max_no_progress": 3}}
    for restart in range(12):
        done = run_script(values, restart=restart)
        if restart == 8:  # one that made progress: the count starts anew
            (tmp_path / "run/attempts/7.8/saved").write_text("8\n")
        if restart < 3 or restart > 8:
            assert "giving up" not in done.stderr
        elif restart == 3:
            assert done.returncode == 1
            assert "3 attempt(s) in a row" in done.stderr


def test_new_job_of_a_run_starts_with_a_fresh_crash_budget(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    values = {**worker(tmp_path, None, code=9), "restart": {"max_crashes": 0}}
    assert run_script(values, job=7).returncode == 9
    assert run_script({**values, "restart": {"max_crashes": 1}}, job=8).returncode == 0
    assert requeues(stubs) == ["requeue 8"]


def test_requeue_refused_because_the_job_is_already_pending_counts_as_success(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Job is pending execution for job 7", code=1)
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 0
    assert len(requeues(stubs)) == 1


def test_failing_requeue_is_retried_then_exits_75_and_names_clusterdp_resume(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="slurm_load_jobs error: Unable to contact slurm controller", code=1)
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 75
    assert len(requeues(stubs)) > 3
    assert "COULD NOT REQUEUE" in done.stderr
    assert "clusterdp resume" in done.stderr


def test_requeue_disabled_by_slurm_submits_a_dependent_job_instead(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Requested operation is presently disabled for job 7", code=1)
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 0, done.stderr
    [call] = stubs.calls("sbatch")
    assert call.startswith(f"--parsable --dependency=afterany:7 {tmp_path}/run/job.sbatch CLUSTERDP_CH")
    assert " CLUSTERDP_CHAIN=7 " in call
    assert ("submitted", None) in ledger(tmp_path)


def test_restart_requeue_false_exits_75_without_requeue(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    done = run_script({**worker(tmp_path, "requeue time 5"), "restart": {"requeue": False}})
    assert done.returncode == 75
    assert requeues(stubs) == []
    assert "--no-requeue" in (tmp_path / "run/job.sbatch").read_text()


@pytest.mark.parametrize("code", [0, 3, 143])
def test_preempted_command_is_requeued_with_any_exit_code(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, code: int
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    run_script({"command": ["bash", "-c", f"exit {code}"]})
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == "preempted"


def test_command_exiting_with_75_is_requeued_with_cause_asked(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    done = run_script({"command": ["bash", "-c", "exit 75"], "restart": {"max_crashes": 0}})
    assert done.returncode == 0, done.stderr
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == "asked"


def test_command_exiting_with_0_is_recorded_as_done(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    done = run_script({"command": "true"})
    assert done.returncode == 0
    assert cause(tmp_path) == "done"
    assert ledger(tmp_path) == [("started", None), ("exited", None), ("finished", "done")]


def test_last_array_task_requeues_itself_not_the_whole_array(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    run_script(worker(tmp_path, "requeue term 5"), SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="2")
    assert requeues(stubs) == ["requeue 7_2"]


AT_THE_LIMIT = ["bash", "-c", "kill -TERM $PPID; until [ -s $STUBS/scontrol.done ]; do /bin/sleep 0.05; done; exit 7"]


def test_batch_script_requeues_its_job_at_the_time_limit_before_ranks_end(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("COMPLETING", "TimeLimit")
    # The rank goes on until the requeue has been seen: if nobody requeues, this hangs, and the time-out says so.
    scontrol = stubs.folder / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("requeue*)", 'requeue*) echo x >"$STUBS/scontrol.done";'))
    done = run_script({"command": AT_THE_LIMIT, "restart": {"max_crashes": 0}})
    assert done.returncode == 0, done.stderr
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == "timeout"


@pytest.mark.parametrize("because", ["restart.requeue is false", "the user cancelled"])
def test_batch_script_without_requeue_waits_for_its_ranks_at_the_time_limit(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, because: str
) -> None:
    """Slurm kills the ranks as soon as the batch script has ended."""
    stubs.answer("COMPLETING", "TimeLimit")
    (tmp_path / "run").mkdir()
    cancel = f"touch {tmp_path}/run/cancelled; " if "user" in because else ""
    said = f"{tmp_path}/run/events/7.0-batch.jsonl"
    lines = f"{cancel}kill -TERM $PPID; until grep -qE 'signal|failed|cancelled' {said}; do /bin/sleep 0.01; done; "
    lines += f"grep -q signal {said} && touch {tmp_path}/saved; exit 7"
    done = run_script({"command": ["bash", "-c", lines], "restart": {"requeue": bool(cancel)}})
    assert (tmp_path / "saved").exists()
    assert (done.returncode, cause(tmp_path)) == ((1, "cancelled") if cancel else (75, "timeout"))
    assert requeues(stubs) == []


@pytest.mark.parametrize("how", ["the user cancelled", "the ranks are done"])
def test_cancelled_or_done_run_is_not_requeued_at_the_time_limit(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, how: str
) -> None:
    stubs.answer("COMPLETING", "TimeLimit")
    ends = f"touch {tmp_path}/run/cancelled" if "user" in how else "echo done finished 9 >{run}/attempts/7.0/outcome"
    lines = f"{ends.format(run=tmp_path / 'run')}; kill -TERM $PPID; exit 0"
    run_script({"command": ["bash", "-c", lines]})
    assert requeues(stubs) == []


def test_taken_master_port_is_retried_once_with_the_next_port(run_script: RunScript, tmp_path: Path) -> None:
    logs = tmp_path / "run/attempts/7.0/logs"
    lines = f"echo $MASTER_PORT >>{tmp_path}/ports; echo EADDRINUSE >>{logs}/rank-00000.out; exit 1"
    run_script({"command": ["bash", "-c", lines]})
    first, second = map(int, (tmp_path / "ports").read_text().split())
    assert second == first + 1


def test_variables_of_an_outer_job_or_torchrun_do_not_reach_the_program(run_script: RunScript, tmp_path: Path) -> None:
    leaks = {"SLURM_CPU_BIND": "quiet", "SLURM_MEM_PER_CPU": "1", "SBATCH_TIMELIMIT": "1", "SLURM_EXPORT_ENV": "NONE"}
    leaks |= {"SLURM_GPUS_PER_TASK": "1", "SLURM_GPU_BIND": "single:1", "SLURM_TRES_BIND": "gres/gpu:single:1"}
    leaks |= {"TORCHELASTIC_RUN_ID": "other", "GROUP_RANK": "0", "CLUSTERDP_RESUME_STEP": "9"}
    run_script({"command": ["bash", "-c", f"env >{tmp_path}/env"]}, **leaks, SLURM_CONF="/etc/slurm.conf")
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert not leaks.keys() & seen.keys()
    assert seen["SLURM_CONF"] == "/etc/slurm.conf"


def test_job_end_time_variable_is_computed_from_squeues_remaining_time(run_script: RunScript, tmp_path: Path) -> None:
    run_script({"command": ["bash", "-c", f"date +%s >{tmp_path}/t; echo $CLUSTERDP_JOB_END_TIME >>{tmp_path}/t"]})
    now, end = map(int, (tmp_path / "t").read_text().split())
    assert end - now == pytest.approx(86400 + 2 * 3600 + 3 * 60 + 4, abs=30)


@pytest.mark.parametrize("outcome", ["requeue term 5", "stop user 5"])
def test_stopped_run_exits_75_without_requeue_even_after_a_preemption(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = worker(tmp_path, outcome)
    if outcome != "stop user 5":  # the file came when the ranks had agreed on something else
        python = tmp_path / "python"
        python.write_text(python.read_text().replace("mkdir", f"touch {tmp_path}/run/stop; mkdir"))
    assert run_script(values).returncode == 75
    assert requeues(stubs) == []
    assert cause(tmp_path) == "stopped"


def test_stopped_command_exiting_with_0_is_recorded_as_stopped_not_done(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    assert run_script({"command": ["touch", str(tmp_path / "run/stop")]}).returncode == 75
    assert (cause(tmp_path), requeues(stubs)) == ("stopped", [])


def test_job_end_time_variable_is_taken_from_slurm_job_end_time(run_script: RunScript, tmp_path: Path) -> None:
    run_script(
        {"command": ["bash", "-c", f"echo $CLUSTERDP_JOB_END_TIME >{tmp_path}/t"]}, SLURM_JOB_END_TIME="1800000000"
    )
    assert (tmp_path / "t").read_text() == "1800000000\n"


@pytest.mark.parametrize("outcome", ["done finished 9", "requeue term 5"])
def test_srun_hanging_five_minutes_after_its_ranks_is_ended(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, outcome: str
) -> None:
    """So it is after a kill -9 of the step's slurmstepd."""
    (stubs.folder / "impatient").touch()
    values = worker(tmp_path, outcome)
    python = tmp_path / "python"
    python.write_text(python.read_text().replace("exit 0", "exec tail -f /dev/null"))
    done = run_script(values)
    assert done.returncode == 0, done.stderr
    assert "srun has not ended for 5 minutes. Ending it." in done.stderr
    assert cause(tmp_path) == ("done" if outcome.startswith("done") else "signal")


def test_finished_step_leaves_no_sleep_process_behind(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    (stubs.folder / "sleep").write_text('#!/bin/bash\necho $$ >>"$STUBS/pids"\nexec /bin/sleep "$@"\n')
    values = worker(tmp_path, "done finished 9")
    python = tmp_path / "python"
    python.write_text(python.read_text().replace("mkdir", "until [ -s $STUBS/pids ]; do :; done; mkdir"))
    assert run_script(values).returncode == 0
    pids = (stubs.folder / "pids").read_text().split()
    wait_for("its end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)
