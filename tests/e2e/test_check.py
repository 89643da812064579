"""`clusterdp check` beside a Slurm: what it finds is what Slurm then does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster

CONFIG = "entry: train:main\nresources:\n  nodes: 2\n  time: 1\n"


def check(cluster: Cluster, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "clusterdp", "check", "cfg.yaml", "--json", *words]
    done = subprocess.run(command, env=cluster.environ(), cwd=folder, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_check_finds_a_job_unable_to_start_and_passes_a_fitting_one(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def main(job):\n    pass\n")
    (tmp_path / "cfg.yaml").write_text(CONFIG)
    jobs = cluster.run("squeue", "--noheader", "--states=all", "--format=%A")
    code, said = check(cluster, tmp_path, "resources.partition=low")
    assert (code, said["asked_slurm"], said["findings"]) == (0, True, [])
    notes = "\n".join(said["notes"])
    assert "low can be preempted: REQUEUE, a grace time of 10 s"[1:] in notes
    assert "to start at" in notes
    assert "Each requeue waits" in notes
    code, said = check(cluster, tmp_path, "resources.partition=short", "resources.time=2:00:00", "resources.nodes=5")
    keys = [(each["level"], each["key"]) for each in said["findings"]]
    assert (code, keys) == (1, [("error", "resources.time"), ("error", "resources.nodes")])
    assert cluster.run("squeue", "--noheader", "--states=all", "--format=%A") == jobs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cfg.yaml", "train.py"]
