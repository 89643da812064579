"""What is broken on purpose breaks as on a real cluster, and is on record afterwards."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.core.state import JobState

from .conftest import Desk, impatient

SLEEP = "srun bash -c 'echo rank $SLURM_PROCID; sleep 60'"


@pytest.fixture(scope="module")
def breakable() -> Iterator[FakeCluster]:
    """Commands lose patience after 1.2 s, a minute lasts a minute; each test mends what it broke."""
    with FakeCluster(shape=impatient(message_timeout_s=1.2)) as cluster:
        yield cluster


@pytest.fixture
def desk(breakable: FakeCluster, tmp_path: Path) -> Desk:
    return Desk(breakable, tmp_path)


def test_kill_rank_leaves_the_remaining_ranks_running(desk: Desk) -> None:
    task = "[ $SLURM_PROCID = 1 ] && exec sleep 60; echo up; until [ -e go ]; do sleep 0.05; done; echo I live"
    job = desk.submit("-n2", script=f"srun bash -c '{task}'; echo srun $?")
    desk.until_said(job, "up")
    desk.cluster.kill_rank(job, 1)
    desk.until_said(job, "task 1: Killed")
    (desk.folder / "go").touch()
    desk.cluster.wait(job, "COMPLETED")
    assert "I live" in desk.output(job)
    assert "srun 137" in desk.output(job)
    assert {"job": job, "rank": "1"}.items() <= history(desk, "kill-rank")[-1].items()


def test_kill_rank_spares_a_newer_step_beside_the_ranks(desk: Desk) -> None:
    beside = "srun --overlap -n2 bash -c 'echo beside; until [ -e go ]; do sleep 0.05; done; echo spared' &"
    job = desk.submit("-n2", script=f"{SLEEP} & until [ -e next ]; do sleep 0.05; done; {beside} wait")
    desk.until_said(job, "rank 1")
    (desk.folder / "next").touch()
    desk.until(lambda: desk.output(job).count("beside") == 2, "the step beside the ranks")
    desk.cluster.kill_rank(job, 1)
    desk.until_said(job, "task 1: Killed")
    (desk.folder / "go").touch()
    desk.until(lambda: desk.output(job).count("spared") == 2, "the end of the step beside the ranks")
    desk.say(f"scancel {job}")


def test_kill_rank_of_a_missing_rank_is_an_error(desk: Desk) -> None:
    job = desk.submit("-n2", script=SLEEP)
    desk.until_said(job, "rank 1")
    with pytest.raises(FakeSlurmError, match="no step runs there that has a rank 2"):
        desk.cluster.kill_rank(job, 2)
    desk.say(f"scancel {job}")


def test_drained_node_finishes_its_job_and_starts_another_only_after_resume(desk: Desk) -> None:
    job = desk.submit("--nodelist=n1", script="until [ -e go ]; do sleep 0.05; done")
    desk.cluster.wait(job, "RUNNING")
    desk.cluster.drain("n1")
    waiting = desk.submit("--nodelist=n1", script="true")
    assert desk.say("sinfo -h -N -p main -n n1 -o %t") == "drng"
    (desk.folder / "go").touch()
    desk.cluster.wait(job, "COMPLETED")
    desk.until(lambda: desk.field(waiting, "Reason").startswith("ReqNodeNotAvail"), "the reason why it waits")
    desk.cluster.resume("n1")
    desk.cluster.wait(waiting, "COMPLETED")


def test_srun_fails_on_a_node_without_slurmd_until_the_node_is_resumed(desk: Desk) -> None:
    """As a Slurm 22.05 and a 24.11 did whose slurmd was killed."""
    desk.cluster.kill_slurmd("n2")
    try:
        job = desk.submit("-N2", "--nodelist=n[1-2]", script="srun true; echo srun $?; srun -N1 -w n1 echo well")
        desk.cluster.wait(job, "COMPLETED")
    finally:
        desk.cluster.resume("n2")
    lost = "Communication connection failure"
    assert desk.output(job).splitlines() == [
        f"srun: error: Task launch for StepId={job}.0 failed on node n2: {lost}",
        f"srun: error: Application launch failed: {lost}",
        "srun: Job step aborted",
        "srun 233",
        "well",
    ]
    desk.cluster.wait(desk.submit("-N2", "--nodelist=n[1-2]", script="srun true"), "COMPLETED")


def test_commands_fail_with_slurms_messages_while_the_controller_is_unreachable(desk: Desk) -> None:
    held = desk.submit("--hold", script="true")
    desk.cluster.unreachable(60)
    lost = "Unable to contact slurm controller (connect failure)"
    began = time.monotonic()
    said = {line: desk.run(*line.split()) for line in ("sbatch --wrap true", "squeue", f"scancel {held}", "sinfo",
            f"scontrol requeue {held}", "scontrol ping", "srun true")}  # fmt: skip
    assert time.monotonic() - began > 1  # they kept trying
    assert {line.split()[0]: (done.returncode, done.stderr.strip()) for line, done in said.items()} == {
        "sbatch": (1, f"sbatch: error: Batch job submission failed: {lost}"),
        "squeue": (1, f"slurm_load_jobs error: {lost}"),
        "scancel": (8, f"scancel: error: Kill job error on job id {held}: {lost}"),
        "sinfo": (1, f"slurm_load_partitions: {lost}"),
        "scontrol": (1, ""),
        "srun": (1, f"srun: error: Unable to allocate resources: {lost}"),
    }
    assert said[f"scontrol requeue {held}"].stderr == f"Unexpected message received for job {held}\n"
    assert "is DOWN" in said["scontrol ping"].stdout
    assert desk.say("scontrol show hostnames n[1-2]").split() == ["n1", "n2"]
    desk.cluster.unreachable(0)
    assert desk.field(held, "JobState") == "PENDING"
    desk.say(f"scancel {held}")


def test_squeue_waits_for_a_briefly_unreachable_controller(desk: Desk) -> None:
    desk.cluster.unreachable(0.1)
    assert desk.say("squeue -h -t RUNNING") == ""


def test_sbatch_times_out_on_a_slow_controller_but_its_job_is_submitted(desk: Desk) -> None:
    (desk.folder / "late.sh").write_text("#!/bin/sh\ntrue\n")
    desk.cluster.slow(by_s=9)
    done = desk.run("sbatch", "--job-name=late", "late.sh")
    desk.cluster.slow(0)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Socket timed out on send/recv operation" in done.stderr
    assert desk.say("squeue -h -t all -n late -o %j") == "late"


def test_flaky_cluster_fails_the_same_submissions_for_the_same_seed(desk: Desk) -> None:
    def codes() -> list[int]:
        desk.cluster.flaky(0.5, seed=7)
        return [desk.run("sbatch", "--hold", "--job-name=flaky", "--wrap=true").returncode for _ in range(8)]

    first = codes()
    assert set(first) == {0, 1}
    assert codes() == first
    assert len(history(desk, "flaky")) == 2 + 2 * sum(first)  # that it was turned on, and each failure
    desk.cluster.flaky(0)
    assert len(desk.say("squeue -h -n flaky -o %i").split()) == 16 - 2 * sum(first)
    desk.say("scancel --name=flaky")


def test_history_records_the_preemption_and_each_state_of_a_job(desk: Desk) -> None:
    job = desk.submit(script="[ $SLURM_RESTART_COUNT ] || sleep 60")
    desk.cluster.wait(job, "RUNNING")
    desk.cluster.preempt(job, grace_s=0)
    desk.cluster.wait(job, "COMPLETED")
    mine = [e for e in desk.cluster.history() if e.get("job") == job]
    words = [e.get("state", e["event"]) for e in mine]
    assert words == ["PENDING", "RUNNING", "COMPLETING", "preempt", "PENDING", "RUNNING", "COMPLETING", "COMPLETED"]
    assert [e["restarts"] for e in mine if "restarts" in e] == [0, 0, 1, 1, 1, 1, 1]
    assert mine[1]["nodes"] == "n1"


def test_waiting_for_an_unknown_job_state_is_an_error(desk: Desk) -> None:
    with pytest.raises(FakeSlurmError, match="not a Slurm job state"):
        desk.cluster.wait(1, "FINISHED")


# -- the clock --


def test_job_times_out_only_after_the_clock_is_advanced_past_its_limit(desk: Desk) -> None:
    job = desk.submit("--time=60", script="trap 'echo told; exit 0' TERM\necho up\nsleep 100 & wait")
    desk.until_said(job, "up")
    desk.cluster.advance(59 * 60)
    assert desk.field(job, "JobState") == "RUNNING"
    assert desk.say(f"squeue -h -j {job} -o %M").startswith("59:0")
    desk.cluster.advance(61)
    assert desk.cluster.wait(job) is JobState.TIMEOUT
    assert "told" in desk.output(job)


def test_advanced_clock_sends_the_warning_signal_before_a_time_limit(desk: Desk) -> None:
    job = desk.submit("--time=60", "--signal=B:USR1@600", script="trap 'echo warned' USR1\necho up\n"
                      "until [ -e go ]; do sleep 0.05; done")  # fmt: skip
    desk.until_said(job, "up")
    desk.cluster.advance(52 * 60)
    desk.until_said(job, "warned")
    (desk.folder / "go").touch()
    assert desk.cluster.wait(job) is JobState.COMPLETED


def test_advanced_clock_starts_a_job_at_its_begin_time(desk: Desk) -> None:
    job = desk.submit("--begin=now+2hours", script="true")
    desk.until(lambda: desk.field(job, "Reason") == "BeginTime", "the reason why it waits")
    desk.cluster.advance(2 * 3600)
    desk.cluster.wait(job, "COMPLETED")


def test_begin_and_deadline_times_follow_the_advanced_clock(desk: Desk) -> None:
    desk.cluster.advance(3 * 3600)
    job = desk.submit("--begin=now+1hours", "--deadline=now+2hours", script="true")
    desk.until(lambda: desk.field(job, "Reason") == "BeginTime", "the reason why it waits")
    desk.cluster.advance(3600)
    desk.cluster.wait(job, "COMPLETED")
    job = desk.submit("--deadline=now+2hours", "--time=1", "--hold", script="true")
    desk.cluster.advance(2 * 3600 - 120)
    assert desk.field(job, "JobState") == "PENDING"
    desk.cluster.advance(61)  # the time limit no longer fits
    desk.cluster.wait(job, "DEADLINE")


def test_time_limit_excludes_the_time_a_job_is_suspended(desk: Desk) -> None:
    job = desk.submit("--time=60", script="echo up; until [ -e go ]; do sleep 0.05; done")
    desk.until_said(job, "up")
    desk.say(f"scontrol suspend {job}")
    desk.cluster.advance(2 * 3600)
    desk.say(f"scontrol resume {job}")
    desk.cluster.advance(59 * 60)
    assert desk.field(job, "JobState") == "RUNNING"
    desk.cluster.advance(61)
    desk.cluster.wait(job, "TIMEOUT")


def test_advanced_clock_survives_a_killed_daemon(desk: Desk) -> None:
    import os
    import signal

    job = desk.submit("--time=60", script="echo up; sleep 100")
    desk.until_said(job, "up")  # before that, a killed daemon may start the job anew
    desk.cluster.advance(1800)
    os.kill(int((desk.cluster.folder / "daemon.pid").read_text()), signal.SIGKILL)
    minutes = int(desk.say(f"squeue -h -j {job} -o %M").partition(":")[0])
    assert 30 <= minutes < 40
    desk.say(f"scancel {job}")


def test_time_scale_shortens_a_time_limit_but_not_kill_wait(tmp_path: Path) -> None:
    with FakeCluster(time_scale=60) as cluster:
        desk = Desk(cluster, tmp_path)
        settings = {
            line.split("=")[0].strip(): line.split("=")[1].strip()
            for line in desk.say("scontrol show config").splitlines()
            if "=" in line
        }
        assert settings["KillWait"] == "5 sec"
        assert "GraceTime=600" in desk.say("scontrol show partition low")  # ten real seconds
        job = desk.submit("--time=1", script="sleep 60")
        assert desk.cluster.wait(job, timeout_s=20) is JobState.TIMEOUT
        assert desk.field(job, "TimeLimit") == "00:01:00"


def history(desk: Desk, event: str) -> list[dict[str, object]]:
    return [line for line in desk.cluster.history() if line["event"] == event]
