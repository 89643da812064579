"""--cluster local: the rehearsed preemption comes once, and does no harm when it comes late."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from clusterdp import config
from clusterdp.cli import main
from clusterdp.cli.local_cluster import _rehearsal
from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.errors import FakeSlurmError
from clusterdp.rehearse.clusters.job_cluster import shape_for
from clusterdp.rundir import RunDir
from clusterdp.submission.job import Job


class Preempted:
    """Of a cluster, only what is asked here."""

    def __init__(self, error: Exception | None = None):
        self.jobs: list[str] = []
        self.error = error

    def preempt(self, job: str) -> None:
        self.jobs.append(job)
        if self.error:
            raise self.error


def hook(cluster: Preempted, folder: Path, **local: Any) -> Any:
    loaded = config.from_mapping({"command": "true", "local": local})
    return _rehearsal(loaded, cast(FakeCluster, cluster), Job("7", RunDir(folder)))


def test_preempt_at_preempts_once_at_its_share_of_the_steps(tmp_path: Path) -> None:
    cluster = Preempted()
    on_progress = hook(cluster, tmp_path, preempt_at=0.5)
    for step in (1, 49, 50, 51, 99):
        on_progress(step, None)
        on_progress(step, 100)
        assert cluster.jobs == (["7"] if step >= 50 else [])


def test_preempt_at_does_not_preempt_a_resumed_run_again(tmp_path: Path) -> None:
    hook(Preempted(), tmp_path, preempt_at=0.5)(60, 100)
    assert hook(Preempted(), tmp_path, preempt_at=0.5) is None


def test_local_run_without_preempt_at_is_not_preempted(tmp_path: Path) -> None:
    assert hook(Preempted(), tmp_path) is None


def test_preempt_at_on_an_ended_job_is_not_an_error(tmp_path: Path) -> None:
    cluster = Preempted(FakeSlurmError("7: no such job is running."))
    hook(cluster, tmp_path, preempt_at=0.5)(99, 100)
    assert cluster.jobs == ["7"]


ASKED = {
    "gpus_per_node": "a100:8",
    "mem": "900G",
    "constraint": "a100&nvlink",
    "partition": "gpu,low",
    "reservation": "mine",
    "nodelist": "g[07-08]",
    "exclude": "g01",
    "nodes": 3,
    "extra": {"licenses": "matlab:2"},
}


def test_local_cluster_has_the_nodes_gpus_and_partitions_named_by_the_job(tmp_path: Path) -> None:
    """Or the script for a real cluster would be refused here."""
    loaded = config.from_mapping({"command": "true", "resources": ASKED, "run_dir": str(tmp_path / "run")})
    shape = shape_for(loaded, 8)
    assert [node.name for node in shape.nodes] == ["g07", "g08", "n1", "g01"]
    assert all((node.gpu_type, node.gpus) == ("a100", 8) for node in shape.nodes)
    assert all(node.memory_mb > 900_000 and node.features == ("a100", "nvlink") for node in shape.nodes)
    assert [part.name for part in shape.partitions] == ["gpu", "low"]
    assert (shape.settings.reservations, shape.settings.licenses) == (("mine",), ("matlab",))


def test_local_cluster_derives_its_gpus_from_gpus_per_task_or_gres(tmp_path: Path) -> None:
    for resources, found in (
        ({"gpus_per_task": "h100:1", "tasks_per_node": 4}, ("h100", 4)),
        ({"gres": "gpu:a100:2"}, ("a100", 2)),
        ({"gres": "gpu:2"}, ("", 2)),
        ({"tasks_per_node": 2}, ("", 0)),
    ):
        loaded = config.from_mapping({"command": "true", "resources": resources})
        node = shape_for(loaded, loaded.resources.tasks_per_node or 1).nodes[0]
        assert (node.gpu_type, node.gpus) == found


@pytest.mark.slow
def test_local_sweep_submit_waits_and_exits_1_after_a_failed_element(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("PATH", "SLURM_CONF"):  # the cluster's, and put back at the end
        monkeypatch.setenv(name, os.environ.get(name, ""))
    Path("c.yaml").write_text("command: [sh, -c, 'exit ${params.code}']\nrestart: {max_crashes: 0}\n")
    words = ["submit", "c.yaml", "--cluster", "local", "run_dir=s"]
    assert main([*words, "--sweep", "params.code=0,3"]) == 1
    out = capsys.readouterr().out
    assert "2 of 2 over: 1 done, 1 failed" in out
    assert "not done: 1\n" in out
    assert main([*words[:-1], "run_dir=t", "--sweep", "params.code=0"]) == 0
