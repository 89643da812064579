"""Folders of pretend nodes in a rehearsal: a /tmp of their own, and what they share on a real cluster."""

from pathlib import Path

import pytest

from clusterdp.fakeslurm.core import file_traps, node_folders
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.rehearse.clusters.local_cluster import LocalCluster, shared_folders


def test_shared_folders_includes_existing_config_folders_except_tmp(tmp_path: Path) -> None:
    found = shared_folders({"env": {"DATA": str(tmp_path)}, "out": f"{tmp_path}/new", "tmp": "/tmp"})
    assert tmp_path in found
    assert tmp_path / "new" not in found and Path("/tmp") not in found


@pytest.mark.parametrize("possible", [True, False])
def test_wrongly_shared_lists_tmp_files_only_without_mount_namespaces(
    possible: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_folders, "possible", lambda: possible)
    cluster = LocalCluster(shape=Shape.simple(1), shared=[tmp_path])
    files = ["/tmp/gan-7/ckpt.pt", str(tmp_path / "ckpt.pt"), "/home/me/ckpt.pt"]
    assert cluster.wrongly_shared(files) == ([] if possible else files[:1])
    cluster.down()


@pytest.mark.slow
@pytest.mark.skipif(not file_traps.possible(), reason="this kernel has no file traps")
def test_file_events_record_writes_of_step_tasks_with_their_rank(tmp_path: Path) -> None:
    lines = ("#!/bin/sh", "#SBATCH -n2", "touch of-the-script", "srun sh -c 'echo x >/tmp/$SLURM_PROCID'", "")
    (tmp_path / "job").write_text("\n".join(lines))
    with LocalCluster(shape=Shape.simple(1, quick=True), shared=[tmp_path]) as cluster:
        assert cluster.file_events
        cluster.wait(cluster.submit("job", cwd=tmp_path), "COMPLETED")
        seen = sorted((event.path, event.rank) for event in cluster.file_events.events)
    assert seen == [("/tmp/0", 0), ("/tmp/1", 1)]
