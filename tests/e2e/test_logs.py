"""`clusterdp logs` of jobs that srun has run: what srun itself says of a rank that fails is in it, too. And
`-f` goes on over a preemption."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import clusterdp, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(240)
CONFIG = """\
command: [python3, train.py]
resources: {nodes: 2, tasks_per_node: 1, cpus_per_task: 1, time: 5, partition: main}
restart: {max_crashes: 0}
"""
PROGRAM = """\
import os, sys, time
from datetime import datetime

rank = int(os.environ["RANK"])
print(datetime.now(), "INFO begin", rank, flush=True)
if rank == 1:
    time.sleep(0.5)
    print(datetime.now(), "INFO step 1", flush=True)
    raise ValueError("nan")
time.sleep(60)
"""

WAITS = """\
import os, pathlib, time

print("rank", os.environ["RANK"], "of", os.environ["CLUSTERDP_ATTEMPT"].partition(".")[2], flush=True)
while not pathlib.Path("stop").exists():
    time.sleep(0.1)
"""


@pytest.mark.slurm
def test_logs_merges_both_ranks_and_shows_the_traceback_and_srun_error(real_cluster: Cluster, project: Path) -> None:
    (project / "train.py").write_text(PROGRAM)
    (project / "cfg.yaml").write_text(CONFIG)
    run = submit(real_cluster, project, "cfg.yaml", f"run_dir={project}/run")
    run.wait_end(60)
    merged = clusterdp(real_cluster, project, "logs", "run", "--all")
    assert merged.returncode == 0, merged.stderr
    labels = [line[:4] for line in merged.stdout.splitlines() if "INFO" in line]
    assert sorted(labels[:2]) == ["[0] ", "[1] "] and labels[2:] == ["[1] "], run.account()
    errors = clusterdp(real_cluster, project, "logs", "run", "--errors").stdout
    found = r"rank 1: Traceback \(most recent call last\):\n(  .*\n)+ValueError: nan\n"
    assert re.search(found, errors), errors + run.account()
    assert re.search(r"batch script: srun: error: \S+: task 1: Exited with exit code 1\n", errors), errors


def test_logs_follow_shows_both_ranks_before_and_after_a_preemption(cluster: Cluster, project: Path) -> None:
    (project / "train.py").write_text(WAITS)
    (project / "cfg.yaml").write_text(CONFIG)
    words = (f"run_dir={project}/run", "resources.partition=low", "snapshot.enabled=false")
    run, printed = submit(cluster, project, "cfg.yaml", *words), project / "printed"
    command = [*cluster.user, cluster.python, "-m", "clusterdp", "logs", "run", "-f", "--all"]
    with printed.open("w") as out:
        follower = subprocess.Popen(command, cwd=project, env=cluster.environ(), stdout=out, stderr=out)
    try:
        wait_for("both ranks", lambda: printed.read_text().count("of 0\n") == 2, 60, report=run.account)
        cluster.preempt(run.job)
        cluster.start_now(run.job)
        wait_for("both ranks again", lambda: printed.read_text().count("of 1\n") == 2, 60, report=run.account)
        (project / "stop").touch()
        assert run.wait_end(60) == "COMPLETED"
        assert follower.wait(30) == 0, printed.read_text()
    finally:
        follower.kill()
        follower.wait()
        cluster.run("scancel", run.job)
    lines = re.findall(r"^\[(\d)\] rank (\d) of (\d)$", printed.read_text(), re.MULTILINE)
    assert sorted(lines[:2]) == [("0", "0", "0"), ("1", "1", "0")], printed.read_text()
    assert sorted(lines[2:]) == [("0", "0", "1"), ("1", "1", "1")], printed.read_text()
