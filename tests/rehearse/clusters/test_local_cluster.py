"""Folders of pretend nodes in a rehearsal: a /tmp of their own, and what they share on a real cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from clusterdp.fakeslurm.core import file_traps, node_folders
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.rehearse.clusters import small_disk
from clusterdp.rehearse.clusters.local_cluster import LocalCluster, shared_folders

LATE_DISK = """\
import os, subprocess, sys
from pathlib import Path
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.rehearse.clusters import small_disk
from clusterdp.rehearse.clusters.local_cluster import LocalCluster
run = Path(sys.argv[1])
with LocalCluster(shape=Shape.simple(1, quick=True), shared=[run]) as cluster:
    task = subprocess.Popen(["srun", "bash", "-c", "echo ready; read; cat disk/file"], cwd=run, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert task.stdout.readline() == "ready\\n"
    small_disk.mount(run / "disk", 1 << 20)
    (run / "disk" / "file").write_text("seen")
    print(task.communicate("go\\n")[0])
"""


def test_existing_folders_in_the_config_are_shared(tmp_path: Path) -> None:
    found = shared_folders({"env": {"DATA": str(tmp_path)}, "out": f"{tmp_path}/new", "tmp": "/tmp"})
    assert tmp_path in found
    assert tmp_path / "new" not in found and Path("/tmp") not in found


@pytest.mark.parametrize("possible", [True, False])
def test_files_in_tmp_are_wrongly_shared_without_namespaces(
    possible: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_folders, "possible", lambda: possible)
    cluster = LocalCluster(shape=Shape.simple(1), shared=[tmp_path])
    files = ["/tmp/gan-7/ckpt.pt", str(tmp_path / "ckpt.pt"), "/home/me/ckpt.pt"]
    assert cluster.wrongly_shared(files) == ([] if possible else files[:1])
    cluster.down()


@pytest.mark.slow
@pytest.mark.skipif(not file_traps.possible(), reason="this kernel has no file traps")
def test_tasks_of_steps_are_trapped_with_their_ranks(tmp_path: Path) -> None:
    lines = ("#!/bin/sh", "#SBATCH -n2", "touch of-the-script", "srun sh -c 'echo x >/tmp/$SLURM_PROCID'", "")
    (tmp_path / "job").write_text("\n".join(lines))
    with LocalCluster(shape=Shape.simple(1, quick=True), shared=[tmp_path]) as cluster:
        assert cluster.file_events
        cluster.wait(cluster.submit("job", cwd=tmp_path), "COMPLETED")
        seen = sorted((event.path, event.rank) for event in cluster.file_events.events)
    assert seen == [("/tmp/0", 0), ("/tmp/1", 1)]


@pytest.mark.slow
@pytest.mark.skipif(small_disk.own_namespace() is None, reason="this system gives no mount namespaces")
def test_a_running_task_sees_a_disk_mounted_later(tmp_path: Path) -> None:
    command = [*(small_disk.own_namespace() or []), sys.executable, "-c", LATE_DISK, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip() == "seen"
