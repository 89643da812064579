"""What is over stays over, though Slurm brings the job back: a run that is done, that has failed, that was cancelled.

Slurm 24.05 to 25.11 requeue a job that was in a grace time once when it ends, whatever its exit code. All releases
accept a requeue in the moment after a scancel, and start what waits for the end of a job if that is cancelled.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.submission.conftest import RunScript, Stubs, cause, last_event, ledger, requeues, worker

STEPD = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T10:59:26"


def program(tmp_path: Path, code: int = 0) -> dict[str, object]:
    """A command job that counts how often it has run."""
    return {"command": ["bash", "-c", f"echo x >>{tmp_path}/ran; exit {code}"]}


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "ran").read_text().split()) if (tmp_path / "ran").exists() else 0


def test_finished_command_does_not_run_again_in_a_requeued_job(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    assert run_script(program(tmp_path)).returncode == 0
    again = run_script(program(tmp_path), restart=1)
    once_more = run_script(program(tmp_path), restart=2)
    assert (again.returncode, once_more.returncode, runs(tmp_path)) == (0, 0, 1)
    assert "has finished this run. To run it again, submit a new run." in again.stdout
    assert [cause(tmp_path, f"7.{n}") for n in range(3)] == ["done"] * 3


def test_finished_command_runs_again_in_a_new_job(run_script: RunScript, tmp_path: Path) -> None:
    run_script(program(tmp_path))
    run_script(program(tmp_path), job=8)
    assert runs(tmp_path) == 2


def test_job_requeued_after_its_last_allowed_crash_does_not_run_again(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    values = program(tmp_path, code=9) | {"restart": {"max_crashes": 1}}
    codes = [run_script(values, restart=restart).returncode for restart in range(4)]
    assert codes == [0, 9, 1, 1]
    assert runs(tmp_path) == 2
    assert cause(tmp_path, "7.3") == "start"
    assert last_event(tmp_path, "7.3")["exit"] == 9
    assert requeues(stubs) == ["requeue 7"]


def test_job_requeued_after_its_program_was_missing_twice_does_not_run_again(
    run_script: RunScript, tmp_path: Path
) -> None:
    values = program(tmp_path, code=127) | {"restart": {"max_crashes": 5}}
    assert [run_script(values, restart=restart).returncode for restart in range(3)] == [0, 127, 1]
    assert runs(tmp_path) == 2
    assert last_event(tmp_path, "7.2")["reason"] == last_event(tmp_path, "7.1")["reason"]


def test_stopped_run_fails_with_reason_user_again_when_requeued(run_script: RunScript, tmp_path: Path) -> None:
    stopped = {"command": ["bash", "-c", f"echo x >>{tmp_path}/ran; touch {tmp_path}/run/stop"]}
    assert [run_script(stopped, restart=restart).returncode for restart in range(2)] == [75, 75]
    assert runs(tmp_path) == 1
    assert last_event(tmp_path, "7.1")["reason"] == last_event(tmp_path, "7.0")["reason"] == "user"


def test_given_up_run_records_the_same_reason_when_requeued(run_script: RunScript, tmp_path: Path) -> None:
    values = worker(tmp_path, "requeue term 5") | {"restart": {"max_no_progress": 2}}
    for restart in range(4):
        run_script(values, restart=restart)
    reasons = [last_event(tmp_path, f"7.{restart}")["reason"] for restart in (2, 3)]
    assert reasons == ["2 attempt(s) in a row without a new checkpoint"] * 2


def test_crashed_run_restarts_if_its_script_was_killed_before_requesting_the_requeue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("scontrol", '[ "$1" != requeue ] || kill -KILL $PPID')
    assert run_script(program(tmp_path, code=9)).returncode < 0
    assert last_event(tmp_path, "7.0")["event"] == "failed"
    (stubs.folder / "on.scontrol").unlink()
    run_script(program(tmp_path), restart=1)
    assert runs(tmp_path) == 2


def test_requeue_is_not_retried_after_its_job_was_cancelled(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Unable to contact slurm controller", code=1)
    cancelled = "JobState=COMPLETING Reason=None Requeue=1 Restarts=0"
    stubs.on("sleep", f'[ "$1" != 2 ] || echo "{cancelled}" >"$STUBS/job"')
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert len(requeues(stubs)) == 2  # at once and after a second
    assert cause(tmp_path) is None
    assert "COULD NOT" not in done.stderr


def test_requeue_is_not_retried_after_its_run_was_cancelled(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Unable to contact slurm controller", code=1)
    stubs.on("sleep", f'[ "$1" != 2 ] || touch {tmp_path}/run/cancelled')
    run_script(worker(tmp_path, "requeue term 5"))
    assert len(requeues(stubs)) == 2
    assert cause(tmp_path) == "cancelled"


def test_requeue_with_a_lost_answer_is_recognized_by_the_restart_count(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue="Socket timed out on send/recv operation", code=1)
    stubs.on("scontrol", 'case "$*" in requeue*) sed -i s/Restarts=0/Restarts=1/ "$STUBS/job" ;; esac')
    done = run_script(worker(tmp_path, None, code=9))
    assert done.returncode == 0, done.stderr
    assert len(requeues(stubs)) == 1
    assert cause(tmp_path) == "start"


def test_scancel_arriving_during_the_job_state_query_prevents_a_requeue(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    """The controller says RUNNING, and the scancel comes before the script has read it."""
    values = worker(tmp_path, "requeue term 5")
    python = tmp_path / "python"
    python.write_text(python.read_text().replace("mkdir", 'echo $PPID >"$STUBS/script"; mkdir'))
    stubs.on(
        "scontrol",
        'if [ "$1" = show ] && [ -e "$STUBS/script" ]; then cat "$STUBS/job"; kill -TERM "$(cat "$STUBS/script")"\n'
        'rm "$STUBS/script"; echo "JobState=COMPLETING Reason=None Requeue=1 Restarts=0" >"$STUBS/job"; exit; fi',
    )
    run_script(values)
    assert not (stubs.folder / "script").exists()
    assert requeues(stubs) == []


def test_cause_is_recorded_although_the_requeue_ends_scontrol_itself(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("scontrol", '[ "$1" != requeue ] || kill -TERM $$')
    run_script(worker(tmp_path, "requeue term 5"))
    assert requeues(stubs) == ["requeue 7"]
    assert cause(tmp_path) == "signal"


@pytest.mark.parametrize("ends", [" ***", " DUE to SIGNAL Terminated ***"])
def test_attempt_following_a_cancelled_one_ends_as_cancelled_without_running(
    run_script: RunScript, tmp_path: Path, ends: str
) -> None:
    run_script(worker(tmp_path, "requeue term 5"))
    (tmp_path / "run/slurm-7.out").write_text(f"{STEPD} DUE TO PREEMPTION ***\n{STEPD}{ends}\n")
    done = run_script(program(tmp_path), restart=1)
    assert (done.returncode, runs(tmp_path)) == (1, 0)
    assert cause(tmp_path, "7.1") == "cancelled"
    assert "was cancelled" in done.stderr
    assert run_script(program(tmp_path), restart=2).returncode == 1
    assert runs(tmp_path) == 0
    assert run_script(program(tmp_path), job=8).returncode == 0  # `clusterdp resume`


@pytest.mark.parametrize("why", ["JOB REQUEUE", "PREEMPTION", "TIME LIMIT", "NODE FAILURE, SEE SLURMCTLD LOG"])
def test_ordinary_requeue_in_the_log_is_not_taken_for_a_scancel(
    run_script: RunScript, tmp_path: Path, why: str
) -> None:
    run_script(worker(tmp_path, "requeue term 5"))
    lines = f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T10:59:26 ***\n{STEPD} DUE TO {why} ***\n"
    (tmp_path / "run/slurm-7.out").write_text(lines)
    run_script(program(tmp_path), restart=1)
    assert runs(tmp_path) == 1


FORBIDDEN = "Requested operation is presently disabled for job 7"


@pytest.mark.parametrize("known", ["to Slurm", "by its output", "by nobody"])
def test_replacement_job_runs_only_if_no_cancel_of_its_predecessor_is_known(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, known: str
) -> None:
    stubs.answer("RUNNING", "None", requeue=FORBIDDEN, code=1)
    run_script(worker(tmp_path, "requeue term 5"))
    [call] = stubs.calls("sbatch")
    passed = dict(word.split("=", 1) for word in call.split() if word.startswith("CLUSTERDP_"))
    assert passed == {"CLUSTERDP_CHAIN": "7", "CLUSTERDP_REPLACES": "7:7", "CLUSTERDP_UNWRITTEN": "0"}
    if known == "to Slurm":
        stubs.answer("CANCELLED", "None")
    if known == "by its output":
        (tmp_path / "run/slurm-7.out").write_text(f"{STEPD} ***\n")
    run_script(program(tmp_path), job=8, **passed)
    assert runs(tmp_path) == (known == "by nobody")
    assert ("cancelled", "cancelled") in ledger(tmp_path) or known == "by nobody"


def submitted(tmp_path: Path) -> list[object]:
    lines = [json.loads(line) for line in (tmp_path / "run/events/7.0-batch.jsonl").read_text().splitlines()]
    return [event["job"] for event in lines if event["event"] == "submitted"]


@pytest.mark.parametrize(
    "words",
    ["Welcome to Site X\n4321", "4321;blue\nYour project has 12 hours left.\n7 days", '  4321  \n"quota": 90 %'],
)
def test_replacement_job_id_is_read_from_sbatch_output_with_a_banner(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, words: str
) -> None:
    stubs.answer("RUNNING", "None", requeue=FORBIDDEN, code=1)
    stubs.on("sbatch", f"echo '{words}'; exit 0")
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 0, done.stderr
    assert submitted(tmp_path) == ["4321"]


def test_timed_out_sbatch_is_not_repeated_if_squeue_lists_the_replacement_job(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue=FORBIDDEN, code=1)
    others = f"97|afterany:7(unfulfilled)|/else/job.sbatch\\n98|afterany:77(unfulfilled)|{tmp_path}/run/job.sbatch\\n"
    row = f"99|afterany:7(unfulfilled)|{tmp_path}/run/job.sbatch\\n"
    stubs.on("sbatch", f'printf "{others}{row}" >"$STUBS/waiting"; echo Socket timed out >&2; exit 1')
    done = run_script(worker(tmp_path, "requeue term 5"))
    assert done.returncode == 0, done.stderr
    assert len(stubs.calls("sbatch")) == 1
    assert submitted(tmp_path) == ["99"]


def test_timed_out_sbatch_stops_retrying_once_squeue_lists_the_replacement_job(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", requeue=FORBIDDEN, code=1)
    stubs.on("sbatch", "echo Socket timed out >&2; exit 1")
    row = f"99|afterany:7(unfulfilled)|{tmp_path}/run/job.sbatch"
    stubs.on("sleep", f'[ "$1" != 5 ] || echo "{row}" >"$STUBS/waiting"')
    assert run_script(worker(tmp_path, "requeue term 5")).returncode == 0
    assert len(stubs.calls("sbatch")) == 3  # at once, after 1 and after 2 seconds
    assert submitted(tmp_path) == ["99"]
