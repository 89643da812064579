"""A drill for each cause of an end: the fault, then the cause on record, what followed, and on which nodes.

The same on the fake and on a real Slurm. Each drill shows by its own trace that the fault was there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

SETTINGS = """
snapshot: {enabled: false}
resources: {partition: main, nodes: 1, tasks_per_node: 1, time: 10}
restart: {in_place: false}
"""
# Each program appends a letter to `ran` when it begins. The first attempt has the fault.
SAME_MISTAKE = """
echo x >>ran
echo "RuntimeError: no device at 0x$RANDOM on $SLURMD_NODENAME (pid $$)"
exit 1
"""
HANGS = """
echo x >>ran
[ $(wc -l <ran) = 1 ] || exit 0
echo $SLURMD_NODENAME >$CLUSTERDP_RUN_DIR/attempts/$CLUSTERDP_ATTEMPT/hung
kill -9 $$
"""
DISK = """
echo x >>ran
[ $(wc -l <ran) = 1 ] || exit 0
echo "OSError: [Errno 28] No space left on device: 'x'" >&2
exit 1
"""
WAITS = """
echo x >>ran
[ $(wc -l <ran) = 1 ] || exit 0
exec sleep 600
"""
IGNORES_TERM = """
if [ $CLUSTERDP_ATTEMPT = $SLURM_JOB_ID.0 ]; then
  [ $RANK = 0 ] || { until [ -e survivor ]; do sleep 0.1; done; kill -9 $$; }
  trap '' TERM
  echo $$ >survivor
  while :; do sleep 0.2; done
fi
! kill -0 $(cat survivor) 2>/dev/null
"""
REQUEUES_ITSELF = """
echo x >>ran
[ $(wc -l <ran) = 1 ] || exit 0
scontrol requeue $SLURM_JOB_ID
exec sleep 600
"""


ASKS = """
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
[ $RANK = 1 ] || exit 75
exec sleep 600
"""
DIES = """
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
[ $RANK = 1 ] || kill -9 $$
trap 'exit 75' TERM
sleep 600 & wait
"""


# Alive for 8 s each, with a busy processor and no output, then the other way round.
BUSY_THEN_TALKS = """
end=$((SECONDS + 8)); while [ $SECONDS -lt $end ]; do :; done
for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 1; done
"""


@contextmanager
def program(cluster: Cluster, project: Path, lines: str, *overrides: str) -> Iterator[Run]:
    (project / "program.sh").write_text(lines)
    (project / "job.yaml").write_text("command: [bash, program.sh]" + SETTINGS)
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run", *overrides)
    try:
        yield run
    finally:
        cluster.run("scancel", run.job)


def begun(run: Run, project: Path) -> None:
    wait_for("the program", (project / "ran").exists, 60, report=run.account)


def nodes_of(run: Run) -> list[str]:
    return [str(event["nodes"]) for event in run.events("started")]


def test_same_error_on_another_node_ends_the_run(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, SAME_MISTAKE) as run:
        assert run.wait_end() == "FAILED", run.account()
        assert run.causes() == ["start", "start"], run.account()
        first, second = nodes_of(run)
        assert first != second, "the second attempt avoids the first one's node"
        said = clusterdp(cluster, project, "status", "run").stdout
        assert re.search(r"the same error as before: RuntimeError: no device at 0x\d+ on n\d", said), said


@pytest.mark.long
@pytest.mark.parametrize(("lines", "cause"), [(ASKS, "asked"), (DIES, "start")])
def test_cause_is_taken_from_the_first_rank_to_end(cluster: Cluster, project: Path, lines: str, cause: str) -> None:
    with program(cluster, project, lines, "resources.tasks_per_node=2") as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == [cause, "done"], run.account()


def test_hung_attempt_is_requeued_to_another_node(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, HANGS) as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["hung", "done"], run.account()
        first, second = nodes_of(run)
        assert first != second, run.account()
        assert re.search(rf"^avoids +{first}$", clusterdp(cluster, project, "status", "run").stdout, re.MULTILINE)


@pytest.mark.parametrize("launcher", ["srun", pytest.param("torchrun", marks=[pytest.mark.slow, pytest.mark.long])])
def test_rank_ignoring_term_is_gone_before_its_job_restarts_in_place(
    cluster: Cluster, project: Path, launcher: str
) -> None:
    words = ("resources.tasks_per_node=2", "restart.in_place=true", f"launch.launcher={launcher}")
    with program(cluster, project, IGNORES_TERM, *words) as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.all_causes() == {f"{run.job}.0": "start", f"{run.job}.0.1": "done"}, run.account()
        failed, started = run.events("failed")[0], run.events("started")[1]
        assert failed["exit"] == (137 if launcher == "srun" else 1), run.account()
        assert started["nodes"] == run.events("started")[0]["nodes"]


@pytest.mark.slow
def test_silent_program_without_cpu_time_is_recorded_as_hung(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, WAITS, "restart.hang_after_s=3", "restart.hung.wait_s=0") as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["hung", "done"], run.account()
        (hang,) = run.events("hang")
        assert re.match(r"no output for \d+ s, and no process has used CPU time", str(hang["reason"]))
        report = run.files.attempts()[0].hang.read_text()
        assert re.search(r"^n\d+ \d+ S \d+ sleep$", report, re.MULTILINE), report


@pytest.mark.long
@pytest.mark.slow
def test_busy_or_printing_program_is_not_recorded_as_hung(cluster: Cluster, project: Path) -> None:
    words = ("restart.hang_after_s=2", "restart.on_hang=restart")
    with program(cluster, project, BUSY_THEN_TALKS, *words) as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert (run.causes(), run.events("hang")) == (["done"], []), run.account()


@pytest.mark.long
@pytest.mark.slow
def test_no_space_left_error_is_recorded_as_disk_not_crash(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, DISK, "restart.disk.wait_s=0") as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["disk", "done"], run.account()


@pytest.mark.long
@pytest.mark.slow
def test_program_requeueing_its_job_is_recorded_as_requeued(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, REQUEUES_ITSELF) as run:
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["requeued", "done"], run.account()


@pytest.mark.long
@pytest.mark.slow
def test_preemption_without_grace_time_is_recorded_as_preempted(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, WAITS, "resources.partition=low0") as run:
        begun(run, project)
        cluster.preempt(run.job)
        assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() == ["preempted", "done"], run.account()


@pytest.mark.long
@pytest.mark.slow
def test_lost_node_is_recorded_as_cause_node_lost_or_lost(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, WAITS) as run:
        begun(run, project)
        with cluster.without_node_of(run.job):
            assert run.wait_end() == "COMPLETED", run.account()
        assert run.causes() in (["node-lost", "done"], ["lost", "done"]), run.account()  # 26.05 says nothing of it


CHAIN = ("restart.how=resubmit", "restart.chain=3")


def jobs(run: Run) -> list[str]:
    return [str(event["job"]) for event in run.events("linked")]


@pytest.mark.parametrize("link", [0, pytest.param(1, marks=[pytest.mark.long, pytest.mark.slow])])
def test_program_does_not_run_in_later_jobs_of_a_cancelled_chain(cluster: Cluster, project: Path, link: int) -> None:
    """Slurm starts a job that waits for another when that one is cancelled."""
    lines = "echo x >>ran; [ $(wc -l <ran) -gt $LINK ] || exit 75; touch here; exec sleep 600"
    with program(cluster, project, lines, *CHAIN, f"launch.env.LINK={link}") as run:
        wait_for("the link to cancel", (project / "here").exists, 90, report=run.account)
        chain = [run.job, *jobs(run)]
        cluster.run("scancel", chain[link])
        wait_for("the next one to end", lambda: cluster.state(chain[link + 1])[0] in ("FAILED", "CANCELLED"), 60)
        assert (project / "ran").read_text() == "x\n" * (link + 1), run.account()


def test_job_chain_continues_in_the_waiting_job_and_cancels_the_unneeded_one(cluster: Cluster, project: Path) -> None:
    with program(cluster, project, "echo x >>ran; [ $(wc -l <ran) = 2 ] || exit 75", *CHAIN) as run:
        wait_for("the second link", lambda: len(jobs(run)) == 2, 60, report=run.account)
        second, third = jobs(run)
        wait_for("its end", lambda: cluster.state(second)[0] == "COMPLETED", 60, report=run.account)
        assert run.causes() == ["asked", "done"], run.account()
        wait_for("no third", lambda: cluster.state(third)[0] == "CANCELLED", 60, report=run.account)
