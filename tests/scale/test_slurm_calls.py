"""What a job asks Slurm for does not grow with its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.run import submit
from tests.scale.conftest import counted_cluster

CONFIG = """
command: [bash, -c, 'case $SLURM_PROCID$CLUSTERDP_ATTEMPT in 3*.0) kill -9 $$;; esac; sleep 2']
resources: {tasks_per_node: 8}
"""
# Of a job whose rank 3 is killed once, after which the ranks start again in place.
CALLS = {
    "sbatch --parsable": 1,
    "squeue --noheader --jobs": 1,
    "scontrol show node": 1,
    "scontrol show job": 3,
    "sinfo --noheader --Node": 1,
    "srun --nodes --ntasks": 2,
    "srun --version": 1,
    "srun --job-name --overlap": 1,  # the keepers
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("nodes", [4, pytest.param(64, marks=pytest.mark.slow)])
def test_slurm_is_called_equally_often_for_any_number_of_ranks(tmp_path: Path, project: Path, nodes: int) -> None:
    (project / "job.yaml").write_text(CONFIG)
    with counted_cluster(nodes, tmp_path) as cluster:
        run = submit(cluster, project, "job.yaml", f"run_dir={project}/run", f"resources.nodes={nodes}")
        assert run.wait_end(200) == "COMPLETED", run.account()
        calls = cluster.calls()
    assert run.causes() == ["start", "done"]
    assert len(list(run.files.attempts()[-1].logs.glob("node-*.log"))) == nodes
    # This test calls `squeue -h`.
    outside = {words: number for words, number in calls.pop("").items() if not words.startswith("squeue -h")}
    assert (outside, calls) == (CALLS, {})
