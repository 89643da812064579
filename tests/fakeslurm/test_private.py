"""The fake believes and executes what lies in its folder: so that must be its user's alone."""

import contextlib
import os
import resource
import shutil
import socket
from pathlib import Path

import pytest

from clusterdp.cli import main
from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.paths import Paths, private_place
from clusterdp.fakeslurm.core.processes import MANY
from clusterdp.fakeslurm.errors import FakeSlurmError
from clusterdp.fakeslurm.slurmctld.daemon import MOST_SILENT
from tests.fakeslurm.conftest import Desk

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a folder of another user")


def trap(folder: Path) -> Path:
    """A folder that looks like a cluster's; its sinfo leaves a mark."""
    paths = Paths(folder)
    for each in (folder, paths.bin, paths.state, paths.spool):
        each.mkdir(mode=0o755)
    with FakeCluster() as own:
        paths.shape.write_text((own.folder / "state" / "shape.json").read_text())
    paths.up.touch()
    mark = folder.parent / "executed"
    (paths.bin / "sinfo").write_text(f"#!/bin/sh\ntouch {mark}\n")
    (paths.bin / "sinfo").chmod(0o755)
    return mark


@as_root
def test_fake_status_refuses_a_folder_of_another_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = trap(tmp_path / "theirs")
    for path in (tmp_path / "theirs", *(tmp_path / "theirs").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    assert main(["fake", "status", "--dir", str(tmp_path / "theirs")]) != 0
    assert "yours alone" in capsys.readouterr().err
    assert not mark.exists()


def test_attach_refuses_a_folder_accessible_to_other_users(tmp_path: Path) -> None:
    mark = trap(tmp_path / "open")
    with pytest.raises(FakeSlurmError, match="yours alone"):
        FakeCluster.attach(tmp_path / "open")
    assert not mark.exists()


def test_cluster_up_refuses_a_symlink_as_its_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(FakeSlurmError, match="yours alone"):
        FakeCluster(tmp_path / "link").up()
    assert not list((tmp_path / "mine").glob("slurm.conf"))


def test_shared_folder_of_clusters_is_in_xdg_runtime_dir_only_if_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(f"/tmp/clusterdp-test-{os.getpid()}")
    runtime.mkdir(mode=0o700)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        assert private_place() == runtime / "clusterdp"
        runtime.chmod(0o755)
        assert private_place() != runtime / "clusterdp"
    finally:
        (runtime / "clusterdp").rmdir()
        runtime.rmdir()


def test_shared_folder_of_clusters_is_refused_if_it_is_a_symlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(f"/tmp/clusterdp-test-{os.getpid()}")
    runtime.mkdir(mode=0o700)
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        (runtime / "clusterdp").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(FakeSlurmError, match="yours alone"):
            private_place()
        assert main(["fake", "up", "--dir", str(tmp_path / "new")]) != 0  # and says so in a line
    finally:
        (runtime / "clusterdp").unlink()
        runtime.rmdir()


def test_attach_finds_a_cluster_from_a_shell_without_xdg_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Path(f"/tmp/clusterdp-test-{os.getpid()}")
    runtime.mkdir(mode=0o700)
    deep = runtime / ("x" * 60) / ("y" * 60)
    deep.parent.mkdir()
    try:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
        cluster = FakeCluster(deep).up()
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        FakeCluster.attach(deep).run("sinfo")
        cluster.down()
        with pytest.raises(FakeSlurmError, match="no fake cluster is up there"):
            FakeCluster.attach(deep)
    finally:
        shutil.rmtree(runtime)


def test_idle_connections_beyond_the_descriptor_limit_do_not_block_commands(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY + 100
    needed = len(os.listdir("/dev/fd")) + wanted + 100
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} descriptors")
    few = max(MOST_SILENT, len(os.listdir("/dev/fd")) + 100)  # gloo's groups in earlier tests have left some open
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        with FakeCluster(quick=True) as cluster, contextlib.ExitStack() as idle:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
            for _ in range(wanted):
                line = idle.enter_context(socket.socket(socket.AF_UNIX))
                line.connect(str(cluster.folder / "socket"))
            assert Desk(cluster, tmp_path).say("squeue -h") == ""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
