"""`clusterdp logs` of a job that srun has run: what srun itself says of a rank that fails is in it, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import clusterdp, submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(120)]
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


def test_lines_of_both_ranks_are_merged_and_the_error_of_one_is_told(real_cluster: Cluster, project: Path) -> None:
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
