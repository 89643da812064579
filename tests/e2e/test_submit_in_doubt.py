"""An sbatch whose answer is lost on a busy day, though its job is accepted: by what squeue says, the job is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.run import submit

LOSES_THE_ANSWER = """#!/bin/bash
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


@pytest.fixture
def busy(cluster: Cluster, tmp_path: Path) -> Cluster:
    sbatch = shutil.which("sbatch", path=cluster.environ()["PATH"])
    assert sbatch
    folder = tmp_path / "busy"
    folder.mkdir()
    (folder / "sbatch").write_text(LOSES_THE_ANSWER.format(sbatch=sbatch))
    (folder / "sbatch").chmod(0o755)
    return replace(cluster, variables={**cluster.variables, "PATH": f"{folder}:{cluster.environ()['PATH']}"})


@pytest.mark.parametrize(
    "config",
    [
        "command: 'true'\n",
        pytest.param("{backend: submitit, entry: 'train:main', resources: {time: 5}}\n", marks=pytest.mark.slow),
    ],
    ids=["sbatch", "submitit"],
)
def test_submit_finds_its_job_after_a_lost_sbatch_answer(busy: Cluster, project: Path, config: str) -> None:
    (project / "c.yaml").write_text(config)
    (project / "train.py").write_text("def main(job): ...\n")
    run = submit(busy, project, "c.yaml", "run_dir=a run")
    assert run.wait_end() == "COMPLETED", run.account()
    assert [event["job"] for event in run.events("submitted")] == [run.job]
    assert run.causes() == ["done"], run.account()
