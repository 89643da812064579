"""What follows each cause of an end: which cause it is, how often the run goes on, and on which nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterdp.batch.files.causes import CAUSES
from clusterdp.config.tree import POLICIES
from tests.submission.conftest import RunScript, Stubs, cause, last_event, ledger, requeues, worker


def test_each_restart_policy_is_named_after_a_known_cause() -> None:
    assert {name.replace("_", "-") for name in POLICIES} <= CAUSES.keys()


def program(lines: str, **restart: Any) -> dict[str, object]:
    """A program of these bash lines, whose `say` writes into its log as srun would."""
    say = 'say() { echo "$*" >>"$CLUSTERDP_LOGS/rank-00000.out"; }; '
    return {"command": ["bash", "-c", say + lines], "restart": restart}


def batch_ledger(tmp_path: Path, attempt: str) -> list[str]:
    return (tmp_path / f"run/events/{attempt}-batch.jsonl").read_text().splitlines()


def nodes(stubs: Stubs, *names: str, state: str = "idle") -> None:
    lines = [f"{state} {name} 8|16000|(null)|(null)\n" for name in names]
    (stubs.folder / "nodes").write_text("".join(lines))


def updates(stubs: Stubs) -> list[str]:
    return [call for call in stubs.calls("scontrol") if call.startswith("update")]


SAID = {
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM": "memory",
    "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=7.0 cgroup.": "memory",
    "slurmstepd: error: Step 7.0 exceeded memory limit (204800 > 102400), being killed": "memory",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "memory",
    "MemoryError": "memory",
    "OSError: [Errno 28] No space left on device: 'x'": "disk",
    "OSError: [Errno 122] Disk quota exceeded": "disk",
    "ValueError: out of range": "start",
    # The training went on, and died of something else.
    "clusterdp: a checkpoint was not saved (1 in a row): rank 0: /x: No space left on device": "start",
    "clusterdp: /x: No space left on device. What goes there is lost until it can be written again": "start",
}


@pytest.mark.parametrize("said", SAID)
def test_failure_cause_memory_disk_or_start_is_derived_from_the_rank_log(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, said: str
) -> None:
    run_script(program(f'say "{said}"; say "and more"; exit 1'))
    assert cause(tmp_path) == SAID[said]
    assert requeues(stubs) == ["requeue 7"]


def test_cause_ignores_srun_messages_of_earlier_attempts(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    out = tmp_path / "run/slurm-7.out"
    out.parent.mkdir()
    out.write_text("srun: error: n1: task 0: Out Of Memory\n")
    run_script(program("exit 1"))
    run_script(program(f"echo 'srun: error: n1: task 0: Out Of Memory' >>{out}; exit 1"), restart=1)
    assert [cause(tmp_path, f"7.{restart}") for restart in (0, 1)] == ["start", "memory"]


def test_crash_after_measured_steps_has_cause_crash_not_start(run_script: RunScript, tmp_path: Path) -> None:
    run_script(program("mkdir -p $CLUSTERDP_RUN_DIR/metrics; echo {} >$CLUSTERDP_RUN_DIR/metrics/7.0.jsonl; exit 1"))
    assert cause(tmp_path) == "crash"


def test_hung_attempt_excludes_its_hung_node_not_the_node_of_killed_peers(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    out = two_nodes(stubs, tmp_path)
    killed = f"echo 'srun: error: n2: task 1: Killed' >>{out}"  # it only waited for the one that hung
    run_script(program(f"echo n1 >$CLUSTERDP_RUN_DIR/attempts/7.0/hung; {killed}; exit 137"))
    assert cause(tmp_path) == "hung"
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == "n1\n"
    calls = stubs.calls("scontrol")
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n1"]
    assert calls.index("requeue 7") < calls.index(updates(stubs)[0]), "Slurm refuses it for a job that runs"


def test_oldest_excluded_node_is_readmitted_if_too_few_nodes_remain(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    nodes(stubs, "n1", "n2", "n3")
    for restart, node in enumerate(["n1", "n2", "n3"]):
        hang = program(f"echo {node} >$CLUSTERDP_RUN_DIR/attempts/7.{restart}/hung; exit 1", hung={"limit": 9})
        run_script(hang | {"resources": {"exclude": "m9"}}, restart=restart, SLURM_JOB_NODELIST=node)
    lists = [call.partition("ExcNodeList=")[2] for call in updates(stubs)]
    assert lists == ["m9,n1", "m9,n2,n1", "m9,n3,n2"]  # the oldest goes first


def test_hung_node_is_not_excluded_if_sinfo_lists_no_nodes(run_script: RunScript, stubs: Stubs) -> None:
    run_script(program("echo n1 >$CLUSTERDP_RUN_DIR/attempts/7.0/hung; exit 1"))
    assert updates(stubs) == []
    assert requeues(stubs) == ["requeue 7"]


def test_job_starting_on_an_excluded_node_is_requeued_once(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    nodes(stubs, "n1", "n2")
    run_script(program("echo n1 >$CLUSTERDP_RUN_DIR/attempts/7.0/hung; exit 1"))
    run = program("touch $CLUSTERDP_RUN_DIR/ran", max_no_progress=1)
    assert run_script(run, restart=1).returncode == 0
    assert (cause(tmp_path, "7.1"), (tmp_path / "run/ran").exists()) == ("bad-node", False)
    run_script(run, restart=2)
    assert (cause(tmp_path, "7.2"), (tmp_path / "run/ran").exists()) == ("done", True)


@pytest.mark.parametrize(
    ("second", "node", "spare", "ends"),
    [
        ("RuntimeError: no device at 0xbeef01 (pid 4712)", "n2", "n1 n2 n3", True),
        ("RuntimeError: no device at 0xbeef01 (pid 4712)", "n1", "n1", True),  # there is no other one
        ("RuntimeError: no device at 0xbeef01 (pid 4712)", "n1", "n1 n2 n3", False),
        ("RuntimeError: no file x", "n2", "n1 n2 n3", False),
    ],
)
def test_repeated_start_error_on_another_or_the_only_node_ends_the_run(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, second: str, node: str, spare: str, ends: bool
) -> None:
    nodes(stubs, *spare.split())
    first = "RuntimeError: no device at 0xbeef99 (pid 815)"
    assert run_script(program(f'say "{first}"; exit 1')).returncode == 0
    done = run_script(program(f'say "{second}"; exit 1'), restart=1, SLURM_JOB_NODELIST=node)
    assert done.returncode == (1 if ends else 0), done.stderr
    assert len(requeues(stubs)) == (1 if ends else 2)
    if ends:
        assert last_event(tmp_path, "7.1")["reason"] == f"the same error as before: {second}"
        assert "for the last time: the same error as before" in done.stderr


@pytest.mark.parametrize(
    "notice",
    [
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-31T10:41:09 ***",
        "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-31T10:41:09 ***",
        "[2026-01-31T10:41:09.032] error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE to SIGNAL Killed ***",
    ],
    ids=["20.11", "22.05", "26.05"],
)
def test_slurmstepd_notice_in_a_rank_log_is_not_taken_for_its_error(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, notice: str
) -> None:
    for restart, error in enumerate(("RuntimeError: no file x", "ValueError: no file y")):
        done = run_script(program(f'say "{error}"; say "{notice}"; exit 1'), restart=restart)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"run/attempts/7.{restart}/mistake").read_text().splitlines()[-1] == error
    assert len(requeues(stubs)) == 2


def test_node_exclusion_after_a_start_error_lasts_one_attempt(run_script: RunScript, stubs: Stubs) -> None:
    nodes(stubs, "n1", "n2")
    run_script(program('say "ValueError: 1"; exit 1'))
    stubs.answer("RUNNING", "None", excluded="n1")
    run_script(program("exit 75"), restart=1, SLURM_JOB_NODELIST="n2")
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n1", "update JobId=7 ExcNodeList="]


ERROR = "printf 'n1\\n%s\\nValueError: x\\n' {step} >$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/error; {more}exit 1"


@pytest.mark.parametrize(
    ("steps", "more", "ends"),
    [((120, 120), "", True), ((120, 121), "", False), ((120, 120), "echo 110 >{here}/saved; ", False)],
)
def test_repeated_error_at_the_same_step_without_new_checkpoint_ends_the_run(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, steps: tuple[int, int], more: str, ends: bool
) -> None:
    for restart, step in enumerate(steps):
        here = tmp_path / f"run/attempts/7.{restart}"
        lines = ERROR.format(step=step, more=more.format(here=here)) if restart else ERROR.format(step=step, more="")
        run_script(program(f"SECONDS=100; {lines}"), restart=restart)
        if not restart:  # it took longer than a minute
            mistake = here / "mistake"
            mistake.write_text(mistake.read_text().replace(" yes", " no"))
    assert (len(requeues(stubs)) == 1) is ends


def two_nodes(stubs: Stubs, tmp_path: Path) -> Path:
    """A job on n1 and n2 of four nodes; returns its output."""
    stubs.expands("n1", "n2")
    nodes(stubs, "n1", "n2", "n3", "n4")
    out = tmp_path / "run/slurm-7.out"
    out.parent.mkdir()
    out.touch()
    return out


PEER_GONE = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:1: Connection reset by peer"
SURVIVOR = "srun: error: n1: task 0: Exited with exit code 1"
LAUNCH = "srun: error: Task launch for StepId=7.0 failed on node {}: Communication connection failure"


@pytest.mark.parametrize(
    ("reported", "error"),
    [
        (("srun: error: n2: task 1: Killed", SURVIVOR), "srun: n2: task 1: Killed"),
        ((SURVIVOR, "srun: error: n2: task 1: Killed"), "srun: n2: task 1: Killed"),
        (("srun: error: n2: tasks 1-2: Bus error (core dumped)",), "srun: n2: task 1: Bus error (core dumped)"),
    ],
    ids=["first", "last", "all of a node"],
)
def test_node_of_a_killed_rank_is_excluded_not_the_nodes_of_survivors(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, reported: tuple[str, ...], error: str
) -> None:
    out = two_nodes(stubs, tmp_path)
    words = "; ".join(f"echo '{line}' >>{out}" for line in reported)
    for restart in range(2):  # the second time the survivor reports the very same
        run_script(program(f'say "{PEER_GONE}"; {words}; exit 137'), restart=restart, SLURM_JOB_NODELIST="n[1-2]")
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n2"] * 2
    assert len(requeues(stubs)) == 2, "two kills are no mistake that repeats itself"
    (failed,) = (json.loads(line) for line in batch_ledger(tmp_path, "7.0") if '"failed"' in line)
    assert failed["error"] == error


def test_rank_error_beside_a_broken_pipe_is_recorded_and_excludes_its_node(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    out = two_nodes(stubs, tmp_path)
    lines = "printf 'ValueError: mine\\nBroken pipe\\n' >$CLUSTERDP_LOGS/rank-00001.out; "
    for line in ("n2: task 1: Exited with exit code 1", "n1: task 0: Killed"):
        lines += f"echo 'srun: error: {line}' >>{out}; "
    run_script(program(lines + "exit 137"), SLURM_JOB_NODELIST="n[1-2]")
    (failed,) = (json.loads(line) for line in batch_ledger(tmp_path, "7.0") if '"failed"' in line)
    assert (failed["error"], updates(stubs)) == ("ValueError: mine", ["update JobId=7 ExcNodeList=n2"])


def test_failed_task_launch_excludes_its_node_as_lost_and_counts_no_crash(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    out = two_nodes(stubs, tmp_path)
    lines = f"echo '{LAUNCH.format('n2')}' >>{out}; exit 233"
    run_script(program(lines, max_crashes=0), SLURM_JOB_NODELIST="n[1-2]")
    assert cause(tmp_path) == "node-lost"
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == "n2\n"
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n2"]
    stubs.expands("n1")
    assert run_script(program("exit 3", max_crashes=0), restart=1).returncode == 3, "that was the attempt before"


def test_error_message_with_special_characters_is_recorded_as_valid_json(run_script: RunScript, tmp_path: Path) -> None:
    run_script(program("""say 'ValueError: "a" \\ $(touch pwned) '$'\\t'; exit 1""", max_crashes=0))
    event = last_event(tmp_path, "7.0")
    assert event["error"].startswith("ValueError:  a ")
    assert "$(touch pwned)" in event["error"]


@pytest.mark.parametrize(
    ("notice", "expected"),
    [
        ("DUE TO PREEMPTION", "preempted"),
        ("DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node-lost"),
        ("DUE TO JOB REQUEUE", "requeued"),
        ("DUE TO TIME LIMIT", "timeout"),
        (None, "lost"),
    ],
)
@pytest.mark.parametrize("year", [2001, 2099])
def test_cause_of_an_unrecorded_end_comes_from_slurmstepds_notice_of_the_attempt(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, notice: str | None, expected: str, year: int
) -> None:
    """But a notice from before the attempt is about an earlier one."""
    stubs.answer("COMPLETING", "None")
    (stubs.folder / "down").write_text("n1\n")
    run_script(program("exit 1"))
    if notice:
        text = f"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT {year}-02-03T04:05:06 {notice} ***\n"
        (tmp_path / "run/slurm-7.out").write_text(text)
    run_script(program("exit 1"), restart=1)
    assert cause(tmp_path) == (expected if year == 2099 else "lost")
    avoided = (tmp_path / "run/attempts/7.0/avoid").exists()
    assert avoided == (cause(tmp_path) in ("lost", "node-lost")), "a node that is down"


def test_down_node_is_avoided_beside_those_on_record(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    stubs.answer("COMPLETING", "None")
    (stubs.folder / "down").write_text("n1\n")
    run_script(program("echo n3 >$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/avoid; exit 1"))
    run_script(program("exit 1"), restart=1)
    assert (tmp_path / "run/attempts/7.0/avoid").read_text() == "n3 n1\n"


@pytest.mark.parametrize(
    ("notice", "expected"), [("DUE TO PREEMPTION", "preempted"), ("DUE TO JOB REQUEUE", "requeued")]
)
def test_cause_of_an_attempt_saved_at_sigterm_comes_from_slurmstepds_notice(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, notice: str, expected: str
) -> None:
    """The ranks cannot tell the TERM of `scontrol requeue` from that of a preemption without grace time."""
    stubs.answer("RUNNING", "None", restarts=1)
    run_script(worker(tmp_path, "requeue term 5"))
    text = f"slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2099-02-03T04:05:06 {notice} ***\n"
    (tmp_path / "run/slurm-7.out").write_text(text)
    run_script(worker(tmp_path, "done finished 9"), restart=1)
    assert cause(tmp_path) == expected


def test_restart_preempted_limit_of_2_ends_the_run_at_the_third_preemption(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = program("exit 3", preempted={"limit": 2})
    assert [run_script(values, restart=restart).returncode for restart in range(4)] == [0, 0, 1, 1]
    assert len(requeues(stubs)) == 2
    expected = "3 attempt(s) that ended so (preempted), where restart.preempted.limit is 2"
    assert [last_event(tmp_path, f"7.{n}")["reason"] for n in (2, 3)] == [expected] * 2


def test_restart_max_attempts_of_3_ends_the_run_at_the_third_attempt(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = program("exit 3", max_attempts=3)
    assert [run_script(values, restart=restart).returncode for restart in range(3)] == [0, 0, 1]
    assert last_event(tmp_path, "7.2")["reason"] == "3 attempt(s), where restart.max_attempts is 3"


@pytest.mark.parametrize("saved", [False, True])
def test_restart_max_hours_ends_the_run_only_without_a_newer_checkpoint(
    run_script: RunScript, stubs: Stubs, tmp_path: Path, saved: bool
) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = program("exit 3", max_hours=2)
    run_script(values)
    (tmp_path / "run/attempts/7.0/exit").write_text("3 7300 0\n")
    if saved:
        (tmp_path / "run/attempts/7.0/saved").write_text("5\n")
    done = run_script(values, restart=1)
    assert done.returncode == (0 if saved else 1)
    if not saved:
        reason = "2 allocated hours without a newer checkpoint, where restart.max_hours is 2.0"
        assert last_event(tmp_path, "7.1")["reason"] == reason


def test_newer_checkpoint_resets_the_hours_of_max_hours(run_script: RunScript, stubs: Stubs, tmp_path: Path) -> None:
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    values = program("exit 3", max_hours=2)
    for restart in range(4):
        assert run_script(values, restart=restart).returncode == 0
        (tmp_path / f"run/attempts/7.{restart}/exit").write_text("3 4000 0\n")
        if restart == 1:
            (tmp_path / "run/attempts/7.1/saved").write_text("5\n")


def test_wait_before_an_attempt_doubles_with_consecutive_failures(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    values = program("echo x$SLURM_RESTART_COUNT; exit 1", start={"wait_s": 1000}, max_crashes=9)
    waited = []
    for restart in range(3):
        run_script(values, restart=restart)
        waited.append([int(s) for s in stubs.calls("sleep") if int(s) > 100])
    assert not waited[0]
    assert 980 < waited[1][0] <= 1000
    assert 1980 < waited[2][1] <= 2000


def test_restart_chain_submits_its_next_job_while_running_up_to_its_length(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    chain: dict[str, Any] = {"how": "resubmit", "chain": 2}
    stubs.on("sbatch", f'echo "4321|afterany:7|{tmp_path}/run/job.sbatch" >$STUBS/waiting')
    stubs.answer("RUNNING", "None", "2026-01-01T00:00:00")
    assert run_script(program("exit 3", **chain)).returncode == 0
    [call] = stubs.calls("sbatch")
    assert "--dependency=afterany:7 " in call
    assert requeues(stubs) == []
    assert [name for name, _ in ledger(tmp_path)] == ["started", "linked", "exited", "submitted", "requeued"]
    (stubs.folder / "waiting").write_text("")
    environ = {"CLUSTERDP_CHAIN": "7", "CLUSTERDP_REPLACES": "7:7"}
    stubs.answer("RUNNING", "None")
    assert run_script(program("exit 0", **chain), job=4321, **environ).returncode == 0
    assert len(stubs.calls("sbatch")) == 1, "it is the second of two"


def test_waiting_job_of_a_chain_is_cancelled_if_the_run_is_done(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    stubs.on("sbatch", f'echo "4321|afterany:7|{tmp_path}/run/job.sbatch" >$STUBS/waiting')
    run_script(program("exit 0", how="resubmit", chain=5))
    assert stubs.calls("scancel") == ["4321"]


def test_chain_end_ignores_a_job_id_in_an_inherited_variable(run_script: RunScript, stubs: Stubs) -> None:
    """The script's variables may stand in the environment of submit, with other values."""
    run_script(program("exit 0", how="resubmit", chain=1), new="4711")
    assert stubs.calls("scancel") == []


def test_chain_job_after_a_cancelled_job_does_not_run_its_program(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    """Slurm starts a job that waits for the end of another when that one is cancelled."""
    stubs.answer("CANCELLED", "None")
    values = program("touch $CLUSTERDP_RUN_DIR/ran", how="resubmit", chain=5)
    done = run_script(values, job=8, CLUSTERDP_CHAIN="7", CLUSTERDP_REPLACES="7:7")
    assert done.returncode == 1
    assert cause(tmp_path, "8.0") == "cancelled"
    assert not (tmp_path / "run/ran").exists()
    assert stubs.calls("sbatch") == []


def test_resubmitted_job_restores_the_newest_checkpoint_of_its_chain(run_script: RunScript, tmp_path: Path) -> None:
    """And goes not back to the step of `resume --from` once more."""
    lines = r"echo \${CLUSTERDP_RESUME_STEP-newest} >>$HOME/seen; "
    lines += "echo 20 >$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/saved; exit 75"
    values = program(lines, how="resubmit", from_step=10)
    run_script(values)
    run_script(values, job=8, CLUSTERDP_CHAIN="7", CLUSTERDP_REPLACES="7:7")
    assert (tmp_path / "seen").read_text().split() == ["10", "newest"]


def test_job_on_a_range_avoids_a_node_and_starts_with_fewer(
    run_script: RunScript, stubs: Stubs, tmp_path: Path
) -> None:
    """Two nodes are left, as many as the last attempt had: a job of one size could not spare one."""
    nodes(stubs, "n1", "n2")
    hang = program("echo n1 >$CLUSTERDP_RUN_DIR/attempts/7.0/hung; exit 1")
    given = {"SLURM_JOB_NUM_NODES": "2"}
    run_script(hang | {"resources": {"nodes": "1-2"}}, **given)
    assert updates(stubs) == ["update JobId=7 ExcNodeList=n1"]
    assert "--nodes=2 --ntasks=2 " in (stubs.folder / "srun.args").read_text()


@pytest.mark.parametrize(("tasks", "asked"), [(8, ["update JobId=7 NumTasks=2"]), (2, [])])
def test_requeued_job_on_a_range_gets_the_tasks_of_its_least_nodes(
    run_script: RunScript, stubs: Stubs, tasks: int, asked: list[str]
) -> None:
    job = stubs.folder / "job"
    job.write_text(f"{job.read_text()}   NumNodes=4 NumCPUs=8 NumTasks={tasks} CPUs/Task=1\n")
    run_script(program("exit 1") | {"resources": {"nodes": "1-4", "tasks_per_node": 2}}, SLURM_JOB_NUM_NODES="4")
    assert requeues(stubs) == ["requeue 7"]
    assert updates(stubs) == asked


def test_job_on_one_number_of_nodes_keeps_its_tasks(run_script: RunScript, stubs: Stubs) -> None:
    job = stubs.folder / "job"
    job.write_text(f"{job.read_text()}   NumNodes=4 NumCPUs=8 NumTasks=8 CPUs/Task=1\n")
    run_script(program("exit 1") | {"resources": {"nodes": 1}})
    assert (requeues(stubs), updates(stubs)) == (["requeue 7"], [])
