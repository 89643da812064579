"""The preflight, with a node on which the run folder cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import Run, clusterdp, submit

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow, pytest.mark.long]

# No process on n2 can make a file grow. Only there: the ranks' own interpreter is the same one everywhere.
PYTHON = f"""#!/bin/bash
if [ "$SLURMD_NODENAME" = n2 ]; then ulimit -f 0; fi
exec {sys.executable} "$@"
"""
CONFIG = """
entry: train:main
resources: {partition: main, nodes: 2, tasks_per_node: 1, time: 10}
launch: {preflight: true}
"""
ENTRY = """
def main(job):
    pass
"""


def run_with(cluster: Cluster, project: Path, lines: str) -> Run:
    """A run whose interpreter is this shell script: it fails the preflight on n2, and ends on other nodes."""
    python = project / "python"
    python.write_text(lines)
    python.chmod(0o755)
    (project / "train.py").write_text(ENTRY)
    (project / "job.yaml").write_text(CONFIG)
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run", f"launch.python={python}")
    try:
        assert run.wait_end() == "COMPLETED", run.account()
    finally:
        cluster.run("scancel", run.job)
    assert run.causes() == ["preflight", "done"], run.account()
    assert [event["nodes"] for event in run.events("started")] == ["n[1-2]", "n[3-4]"]
    return run


def test_node_failing_the_preflight_is_avoided_by_the_next_attempt(cluster: Cluster, project: Path) -> None:
    run = run_with(cluster, project, PYTHON)
    first, second = run.events("preflight")
    assert first["failures"] == ["n2: cannot write to the run folder: File too large"], run.account()
    assert second["failures"] == [], run.account()
    assert "because a node failed the preflight" in clusterdp(cluster, project, "status", "run").stdout


def test_preflight_ends_as_soon_as_a_task_dies(cluster: Cluster, project: Path) -> None:
    dies = PYTHON.replace("ulimit -f 0", 'case "$*" in *train.preflight*) exit 9 ;; esac')  # before it can say anything
    run = run_with(cluster, project, dies)
    first, _ = run.events("preflight")
    assert first["failures"] == ["n2: its task has died: Exited with exit code 9"], run.account()
    assert first["seconds"] < 20, run.account()  # the others would wait for it for two minutes


SEES = f"""#!/bin/bash
case "$*" in *train.preflight*)
  echo "preflight $SLURMD_NODENAME says GPUs $CUDA_VISIBLE_DEVICES"
  echo "preflight $SLURMD_NODENAME ok 0.1"
  exit ;;
esac
exec {sys.executable} "$@"
"""


def test_preflight_of_a_node_sees_the_gpus_of_all_its_ranks(cluster: Cluster, project: Path) -> None:
    """The ranks ask for one each: a step that asks for more in one task is refused by some releases of Slurm."""
    python = project / "python"
    python.write_text(SEES)
    python.chmod(0o755)
    (project / "train.py").write_text(ENTRY)
    (project / "job.yaml").write_text(CONFIG)
    words = ("resources.gpus_per_task=1", "resources.tasks_per_node=2", "train.backend=gloo")
    run = submit(cluster, project, "job.yaml", f"run_dir={project}/run", f"launch.python={python}", *words)
    assert run.wait_end() == "COMPLETED", run.account()
    assert run.causes() == ["done"], run.account()
    said = run.account()
    assert all(f"clusterdp: preflight: {node}: GPUs 0,1" in said for node in ("n1", "n2")), said
