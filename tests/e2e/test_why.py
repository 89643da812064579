"""`clusterdp why` and `clusterdp list` of jobs that wait, run and have failed, by what this Slurm says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit
from tests.waiting import wait_for

SLEEP = 'command: [sleep, "60"]\nresources: {{nodes: {nodes}, time: "1:00", extra: {{{extra}}}}}\n'
FAILS = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(30)"


def why(run: Run, folder: Path) -> dict[str, Any]:
    done = clusterdp(run.cluster, folder, "why", str(run.files.path), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def listed(run: Run, folder: Path) -> dict[str, Any]:
    """Its row, which is the first: it was submitted last."""
    done = clusterdp(run.cluster, folder, "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    row: dict[str, Any] = json.loads(done.stdout)[0]
    assert row["run"] == str(run.files.path)
    return row


def waiting(cluster: Cluster, folder: Path, nodes: int, reason: str, extra: str = "") -> dict[str, Any]:
    """What is said of a job when Slurm has come to that reason."""
    (folder / "job.yaml").write_text(SLEEP.format(nodes=nodes, extra=extra))
    run = submit(cluster, folder, "job.yaml")
    try:
        wait_for(reason, lambda: cluster.state(run.job)[1] == reason, 30, every_s=0.3, report=run.account)
        found, row = why(run, folder), listed(run, folder)
    finally:
        cluster.run("scancel", run.job)
    assert (row["state"], row["slurm_state"], row["slurm_reason"]) == ("waiting", "PENDING", reason)
    assert found["state"] == "waiting"
    pending: dict[str, Any] = found["pending"]
    assert pending["reason"] == reason
    return pending


def test_why_names_the_pending_reason_of_a_waiting_job(cluster: Cluster, project: Path) -> None:
    words = ["sbatch", "--parsable", "--nodes=1", "--exclusive", "--output=/dev/null", "--wrap=sleep 60"]
    other = cluster.run(*words).strip()
    try:
        wait_for("the other job", lambda: cluster.state(other)[0] == "RUNNING", 30, every_s=0.3)
        pending = waiting(cluster, project, 4, "Resources")
        assert pending["smaller"] == "3 of 4 are idle in main: resources.nodes=3 could start now"
        assert pending["nodes"] == 4
        pending = waiting(cluster, project, 1, "Dependency", extra=f'dependency: "afterok:{other}"')
        assert (pending["words"], pending["never_starts"]) == ("waits for another job to end", False)
        pending = waiting(cluster, project, 1, "JobHeldUser", extra="hold: true")
        assert "scontrol release" in pending["do"]
    finally:
        cluster.run("scancel", other)


def test_why_names_the_first_failed_rank_of_a_command(cluster: Cluster, project: Path) -> None:
    command = json.dumps([sys.executable, "-c", FAILS])
    (project / "job.yaml").write_text(
        f'command: {command}\nresources: {{nodes: 2, tasks_per_node: 1, time: "1:00"}}\nrestart: {{max_crashes: 0}}\n'
    )
    run = submit(cluster, project, "job.yaml")
    run.wait_end()
    found = why(run, project)
    failure = found["failure"]
    assert found["state"] == "failed"
    assert (failure["rank"], failure["signature"]) == (1, "exit-code"), run.account()
    assert listed(run, project)["state"] == "failed"
    assert failure["node"] == cluster.run("scontrol", "show", "hostnames", nodes_of(run)).split()[1]


def test_list_shows_a_preempted_run_as_running_waiting_and_running_again(cluster: Cluster, project: Path) -> None:
    (project / "job.yaml").write_text(SLEEP.format(nodes=1, extra=""))
    run = submit(cluster, project, "job.yaml", "resources.partition=low")
    jobs = [run.job]
    try:
        assert_runs(run, project, attempt=1)
        everywhere = ["sbatch", "--parsable", "--partition=main", "--exclusive", "--nodes=4", "--output=/dev/null"]
        jobs.append(higher := cluster.run(*everywhere, "--wrap=sleep 600").strip())
        wait_for("the preemption", lambda: cluster.state(higher)[0] == "RUNNING", 90, every_s=0.3, report=run.account)
        row, pending = listed(run, project), why(run, project)["pending"]
        assert (row["state"], row["slurm_state"], row["attempt_number"]) == ("waiting", "PENDING", 1), run.account()
        assert {row["slurm_reason"], pending["reason"]} <= {"BeginTime", "Resources", "Priority"}, run.account()
        cluster.run("scancel", higher)
        cluster.start_now(run.job)
        assert_runs(run, project, attempt=2)
    finally:
        cluster.run("scancel", *jobs)


def assert_runs(run: Run, folder: Path, attempt: int) -> None:
    wait_for("it to run", lambda: len(run.events("started")) == attempt, 60, every_s=0.3, report=run.account)
    row = listed(run, folder)
    assert (row["state"], row["attempt_number"], row["nodes"]) == ("running", attempt, nodes_of(run)), run.account()


def nodes_of(run: Run) -> str:
    return str(run.events("started")[-1]["nodes"])
