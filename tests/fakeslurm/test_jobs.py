"""What becomes of jobs: states, exit codes, signals, attempts. Each fact is one that scripts rely on."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.fakeslurm.core.state import JobState

from .conftest import Desk

DEAF = "trap '' TERM; until [ -e stop ]; do sleep 0.05; done"
ECHO_SIGNALS = """
import signal, sys, time

def heard(number, frame):
    print(sys.argv[1], signal.Signals(number).name, flush=True)
    if len(sys.argv) > 2:
        sys.exit(int(sys.argv[2]))

for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), heard)
print(sys.argv[1], "ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def probing(hasty: Desk) -> Desk:
    (hasty.folder / "probe.py").write_text(ECHO_SIGNALS)
    return hasty


def probe(*words: str) -> str:
    return f"{sys.executable} -u probe.py {' '.join(words)}"


def test_srun_sets_rank_node_and_gpu_variables_of_each_task(shared_desk: Desk) -> None:
    names = ("PROCID", "LOCALID", "NODEID", "NTASKS")
    say = " ".join(f"$SLURM_{name}" for name in names)
    script = f"srun bash -c 'echo {say} $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'"
    job = shared_desk.submit("-N2", "--ntasks-per-node=2", "--gpus-per-node=2", script=script)
    shared_desk.cluster.wait(job, JobState.COMPLETED)
    assert sorted(shared_desk.output(job).splitlines()) == [
        "0 0 0 4 n1 0,1",
        "1 1 0 4 n1 0,1",
        "2 0 1 4 n2 0,1",
        "3 1 1 4 n2 0,1",
    ]


def test_first_attempt_has_no_slurm_restart_count(shared_desk: Desk) -> None:
    job = shared_desk.submit(script="echo ${SLURM_RESTART_COUNT-unset}")
    shared_desk.cluster.wait(job, JobState.COMPLETED)
    assert shared_desk.output(job) == "unset\n"


@pytest.mark.parametrize(
    ("ending", "state", "code", "reason"),
    [
        ("exit 3", "FAILED", "3:0", "NonZeroExitCode"),
        ("exit 137", "FAILED", "137:0", "NonZeroExitCode"),
        ("kill -9 $$", "FAILED", "0:9", "RaisedSignal:9(Killed)"),
        ("srun bash -c 'exit 4'; exit 0", "COMPLETED", "0:0", "None"),
    ],
)
def test_exit_status_of_the_batch_script_alone_decides_the_job_state(
    shared_desk: Desk, ending: str, state: str, code: str, reason: str
) -> None:
    job = shared_desk.submit(script=ending)
    shared_desk.cluster.wait(job)
    assert [shared_desk.field(job, name) for name in ("JobState", "ExitCode", "Reason")] == [state, code, reason]


def test_srun_exits_with_the_highest_exit_code_of_its_tasks(shared_desk: Desk) -> None:
    job = shared_desk.submit("-N2", script="srun bash -c 'exit $((SLURM_PROCID + 3))'; echo $?")
    shared_desk.cluster.wait(job)
    assert "4" in shared_desk.output(job).splitlines()
    assert "srun: error: n2: task 1: Exited with exit code 4" in shared_desk.output(job)


def test_kill_on_bad_exit_terminates_remaining_tasks_and_srun_exits_137(probing: Desk) -> None:
    task = (
        f"if [ $SLURM_PROCID = 0 ]; then exec {probe('task')}; fi; until grep -q ready out; do sleep 0.05; done; exit 3"
    )
    job = probing.submit("-N2", script=f"srun --kill-on-bad-exit --output=out bash -c '{task}'; echo srun $?")
    probing.cluster.wait(job)
    assert "srun 137" in probing.output(job)
    assert "task SIGTERM" in (probing.folder / "out").read_text()


def test_scancel_sends_term_to_script_and_tasks_then_kills_survivors(probing: Desk) -> None:
    job = probing.submit("-N2", script=f"trap 'echo batch TERM' TERM; srun {probe('task')} & wait; {DEAF}")
    probing.until(
        lambda: probing.output(job).count("ready") == 2 if (probing.folder / f"{job}.out").exists() else False
    )
    probing.say(f"scancel {job}")
    assert probing.say(f"squeue -h -j {job} -o '%T %r'") == "COMPLETING None"
    probing.cluster.wait(job, JobState.CANCELLED)
    assert probing.output(job).count("task SIGTERM") == 2
    assert "batch TERM" in probing.output(job)


def test_sacct_shows_cancelled_by_and_exit_code_0_after_scancel(hasty: Desk) -> None:
    job = hasty.submit(script="srun sleep 60")
    hasty.until(lambda: hasty.field(job, "JobState") == "RUNNING")
    hasty.say(f"scancel {job}")
    hasty.cluster.wait(job, JobState.CANCELLED)
    hasty.until(lambda: "CANCELLED by" in hasty.say(f"sacct -n -X -P -j {job} -o State,ExitCode"))
    assert hasty.say(f"sacct -n -X -P -j {job} -o ExitCode") == "0:0"


def test_requeued_job_runs_again_with_the_same_id(hasty: Desk) -> None:
    job = hasty.submit(script='echo attempt ${SLURM_RESTART_COUNT-0}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 60')
    hasty.until_said(job, "attempt 0")
    hasty.say(f"scontrol requeue {job}")
    hasty.until_said(job, "attempt 1")
    hasty.cluster.wait(job, JobState.COMPLETED)
    assert "DUE TO JOB REQUEUE" in hasty.output(job)
    hasty.until(lambda: hasty.say(f"sacct -n -X -D -P -j {job} -o State").split() == ["REQUEUED", "COMPLETED"])


def test_requeued_job_waits_with_reason_begintime_until_its_starttime_is_updated(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from clusterdp.fakeslurm import FakeCluster

    with FakeCluster() as cluster:
        desk = Desk(cluster, tmp_path_factory.mktemp("awkward"))
        job = desk.submit(script="echo up; sleep 60")
        desk.until_said(job, "up")
        desk.say(f"scontrol requeue {job}")
        desk.until(lambda: desk.say(f"squeue -h -j {job} -o '%T %r'") == "PENDING BeginTime", "the reason BeginTime")
        begins = datetime.fromisoformat(desk.field(job, "StartTime"))
        assert 100 < (begins - datetime.now()).total_seconds() <= 121
        desk.say(f"scontrol update JobId={job} StartTime=now")
        cluster.wait(job, JobState.RUNNING)
        assert desk.field(job, "Restarts") == "1"


def test_preemption_with_grace_time_signals_the_tasks_but_not_the_batch_script(probing: Desk) -> None:
    job = probing.submit(
        "-p", "low", script=f"trap 'echo batch TERM' TERM; srun {probe('task', '0')} & wait $!; echo srun $?"
    )
    probing.until_said(job, "ready")
    high = probing.submit("-N4", "--exclusive", script="true")
    probing.cluster.wait(high, JobState.COMPLETED)
    assert "task SIGTERM" in probing.output(job)
    assert "batch TERM" not in probing.output(job)


def test_scontrol_shows_a_job_in_preemption_grace_as_running_with_preempttime(cluster: object, desk: Desk) -> None:
    (desk.folder / "probe.py").write_text(ECHO_SIGNALS)
    job = desk.submit("-p", "low", script=f"srun {probe('task')}")
    desk.until_said(job, "ready")
    desk.cluster.preempt(job)
    desk.until_said(job, "task SIGTERM")
    shown = desk.say(f"scontrol show job {job}")
    assert "JobState=RUNNING Reason=None" in shown
    assert "PreemptTime=2" in shown


def test_job_outlasting_its_preemption_grace_time_is_requeued(probing: Desk) -> None:
    job = probing.submit("-p", "low", script=f'[ -n "$SLURM_RESTART_COUNT" ] || srun {probe("task")}; echo end')
    probing.until_said(job, "ready")
    probing.cluster.preempt(job)
    probing.until_said(job, "DUE TO PREEMPTION")
    probing.cluster.wait(job, JobState.COMPLETED)
    assert probing.field(job, "Restarts") == "2"  # once more at the end of an attempt that was in no grace time


def test_preemption_without_grace_time_requeues_the_job_and_refuses_its_own_requeue(probing: Desk) -> None:
    script = f"""
        [ -z "$SLURM_RESTART_COUNT" ] || exit 0
        trap : TERM
        srun {probe("task", "0")} & wait $!; wait
        scontrol requeue $SLURM_JOB_ID 2>&1; echo requeue exits $?
    """
    probing.say("scontrol update PartitionName=low GraceTime=0")
    job = probing.submit("-p", "low", script=script)
    probing.until_said(job, "ready")
    high = probing.submit("-N4", "--exclusive", script="true")
    probing.cluster.wait(high, JobState.COMPLETED)
    probing.cluster.wait(job, JobState.COMPLETED)
    assert f"Job is pending execution for job {job}\nrequeue exits 1" in probing.output(job)
    assert probing.field(job, "Restarts") == "1"


def test_time_limit_sends_term_and_ends_the_job_as_timeout(probing: Desk) -> None:
    job = probing.submit("--time=10:05", script=f"srun {probe('task', '7')}")
    probing.until_said(job, "ready")
    probing.cluster.advance(660)
    probing.cluster.wait(job, JobState.TIMEOUT)
    assert probing.field(job, "TimeLimit") == "00:11:00"
    assert "task SIGTERM" in probing.output(job)
    assert "DUE TO TIME LIMIT" in probing.output(job)


@pytest.mark.parametrize(("option", "who"), [("USR2@30", "task SIGUSR2"), ("B:USR2@30", "batch USR2")])
def test_warning_signal_reaches_the_tasks_or_with_b_only_the_batch_script(probing: Desk, option: str, who: str) -> None:
    script = f"trap 'echo batch USR2' USR2; srun {probe('task')} & wait; wait; wait"
    job = probing.submit("--time=10", f"--signal={option}", script=script)
    probing.until_said(job, "ready")
    probing.cluster.advance(560)
    probing.until_said(job, who)
    probing.cluster.advance(60)
    probing.cluster.wait(job, JobState.TIMEOUT)
    heard = {line for line in probing.output(job).splitlines() if "USR2" in line}
    assert heard == {who}


def test_job_of_a_failed_node_is_requeued_onto_healthy_nodes(desk: Desk) -> None:
    job = desk.submit(
        "-N2",
        script="echo attempt ${SLURM_RESTART_COUNT-0} on $SLURM_JOB_NODELIST; srun sleep ${SLURM_RESTART_COUNT:+0}60",
    )
    desk.until_said(job, "attempt 0 on n[1-2]")
    desk.cluster.fail("n2")
    desk.until_said(job, "attempt 1 on n[3-4]")  # side by side
    assert desk.say("sinfo -h -N -p main -n n2 -o %t") == "down*"
    desk.cluster.resume("n2")
    assert desk.say("sinfo -h -N -p main -n n2 -o %t") == "idle"


def test_job_with_no_requeue_ends_as_node_fail_if_its_node_dies(desk: Desk) -> None:
    job = desk.submit("--no-requeue", script="echo up; sleep 60")
    desk.until_said(job, "up")
    desk.cluster.fail("n1")
    desk.cluster.wait(job)
    assert desk.field(job, "JobState") == "NODE_FAIL"
    assert desk.field(job, "Reason") == "NodeDown"


def test_array_throttle_limits_running_elements_and_last_element_has_the_array_id(hasty: Desk) -> None:
    job = hasty.submit(
        "--array=0-2%1", "--output=%A_%a.out", script="echo $SLURM_JOB_ID; until [ -e go ]; do sleep 0.05; done"
    )
    hasty.until((hasty.folder / f"{job}_0.out").exists)
    assert hasty.say(f"squeue -h -j {job} -o '%i %t'").splitlines() == [f"{job}_[1-2%1] PD", f"{job}_0 R"]
    (hasty.folder / "go").touch()
    hasty.until(lambda: hasty.say(f"squeue -h -j {job}") == "", "the array's end")
    assert (hasty.folder / f"{job}_2.out").read_text() == f"{job}\n"


def test_afterok_job_never_runs_after_a_failure_and_afternotok_job_does(hasty: Desk) -> None:
    bad = hasty.submit(script="until [ -e go ]; do sleep 0.05; done; exit 1")
    after = hasty.submit(f"--dependency=afterok:{bad}", script="true")
    rescue = hasty.submit(f"--dependency=afternotok:{bad}", script="true")
    hasty.until(lambda: hasty.field(after, "Reason") == "Dependency")
    (hasty.folder / "go").touch()
    hasty.cluster.wait(rescue, JobState.COMPLETED)
    hasty.until(lambda: hasty.field(after, "Reason") == "DependencyNeverSatisfied")


def test_exported_bash_functions_reach_the_tasks(shared_desk: Desk) -> None:
    job = shared_desk.submit(
        script="hello() { echo hello $SLURM_PROCID; }; export -f hello; srun -n2 -N1 --overcommit bash -c hello"
    )
    shared_desk.cluster.wait(job)
    assert sorted(line for line in shared_desk.output(job).splitlines() if "hello" in line) == ["hello 0", "hello 1"]


def test_srun_output_of_100_megabytes_is_complete(shared_desk: Desk) -> None:
    count = "srun bash -c 'head -c 100000000 /dev/zero' | wc -c"
    job = shared_desk.submit(script=count)
    shared_desk.cluster.wait(job)
    assert shared_desk.output(job).strip() == "100000000"


def test_suspended_job_makes_no_progress_until_resumed(hasty: Desk) -> None:
    job = hasty.submit(script="srun bash -c 'while :; do echo >> beats; sleep 0.02; done'")
    beats = hasty.folder / "beats"
    hasty.until(beats.exists)
    hasty.say(f"scontrol suspend {job}")
    assert hasty.field(job, "JobState") == "SUSPENDED"
    seen = [-1, 0]

    def still() -> bool:
        seen.append(len(beats.read_bytes()))
        return seen[-1] == seen[-2] == seen[-3]

    hasty.until(still)
    stood = len(beats.read_bytes())
    hasty.say(f"scontrol resume {job}")
    hasty.until(lambda: len(beats.read_bytes()) > stood)
    assert "not suspended" in hasty.run("scontrol", "resume", job).stderr
    hasty.say(f"scancel {job}")
    assert hasty.cluster.wait(job) is JobState.CANCELLED


def test_interrupted_srun_outside_a_job_leaves_a_cancelled_job(hasty: Desk) -> None:
    words = ["srun", "--job-name=quits", "--quit-on-interrupt", "bash", "-c", "touch up; sleep 100"]
    srun = subprocess.Popen(words, cwd=hasty.folder, env=hasty.cluster.environ(), stderr=-1, text=True)
    hasty.until((hasty.folder / "up").exists)
    srun.send_signal(signal.SIGINT)
    _, said = srun.communicate(timeout=30)
    assert srun.returncode in (130, 137)
    assert "sending Ctrl-C" in said
    assert hasty.say("squeue -h -t all -n quits -o %T") == "CANCELLED"


def test_held_job_starts_after_scontrol_sets_its_nice_value(shared_desk: Desk) -> None:
    job = shared_desk.submit("--hold", script="true")
    assert shared_desk.run("scontrol", "update", f"JobId={job}", "Priority=5").returncode == 1
    shared_desk.say(f"scontrol update JobId={job} Nice=5")
    assert shared_desk.cluster.wait(job) is JobState.COMPLETED


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Desk]:
    """A cluster that minds memory."""
    quick = Shape.simple(quick=True)
    with FakeCluster(shape=replace(quick, settings=replace(quick.settings, enforce_memory=True))) as cluster:
        yield Desk(cluster, tmp_path)


@pytest.mark.parametrize("how", ["", "srun "])
def test_job_exceeding_its_requested_memory_is_killed_as_out_of_memory(strict: Desk, how: str) -> None:
    greedy = f"{how}{sys.executable} -c 'import time; x = bytearray(200 << 20); time.sleep(100)'"
    job = strict.submit("--mem=100", script=greedy)
    modest = strict.submit("--mem=100", script="srun true")
    assert strict.cluster.wait(job) is JobState.OUT_OF_MEMORY
    assert strict.cluster.wait(modest) is JobState.COMPLETED
    assert "oom_kill event" in strict.output(job)
    strict.until(lambda: strict.say(f"sacct -X -n -P -j {job} -o State,ExitCode") == "OUT_OF_MEMORY|0:125")
