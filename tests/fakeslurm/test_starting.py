"""Several start the daemon of one cluster at once: one of them does, and the others wait for it."""

import fcntl
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster, FakeSlurmError
from clusterdp.fakeslurm.core import processes
from clusterdp.fakeslurm.core.shape import Shape
from clusterdp.fakeslurm.slurmstepd.controller_connection import is_daemon

from .conftest import Desk

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="looks into /proc")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Of a cluster whose daemon was killed."""
    cluster = FakeCluster(tmp_path / "cluster", quick=True).up()
    try:
        daemon = int((cluster.folder / "daemon.pid").read_text())
        os.kill(daemon, signal.SIGKILL)
        desk = Desk(cluster, tmp_path)
        desk.until(lambda: not processes.alive(daemon), "the end of the daemon")
        yield desk
    finally:
        cluster.down()


@contextmanager
def slow_start(cluster: FakeCluster) -> Iterator[None]:
    """As if another process had just begun to start the daemon; at the end it was killed over it."""
    lock = os.open(cluster.folder / "state" / "lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def users_of_lock(cluster: FakeCluster) -> list[int]:
    """The pids of processes that have it open, once for each descriptor."""
    lock, pids = str(cluster.folder / "state" / "lock"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended meanwhile
            pids += [int(folder.name) for link in (folder / "fd").iterdir() if target(link) == lock]
    return pids


def target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:  # gone
        return ""


def test_attach_waits_for_a_daemon_started_elsewhere_and_starts_it_after_failure(desk: Desk) -> None:
    cluster = desk.cluster
    with ThreadPoolExecutor(1) as others:
        with slow_start(cluster):
            attached = others.submit(FakeCluster.attach, cluster.folder)
            waits = lambda: any(is_daemon(pid, str(cluster.folder)) for pid in users_of_lock(cluster))  # noqa: E731
            desk.until(waits, "the one that comes second")
        attached.result().run("sinfo")
    desk.cluster.wait(desk.submit(script="true"), "COMPLETED")


def test_attach_succeeds_on_retry_after_a_failed_daemon_start(desk: Desk) -> None:
    folder = desk.cluster.folder
    (folder / "socket").unlink()
    (folder / "socket").mkdir()
    with pytest.raises(FakeSlurmError, match="did not start"):
        FakeCluster.attach(folder)
    (folder / "socket").rmdir()
    FakeCluster.attach(folder).run("sinfo")


def test_new_cluster_starts_only_after_the_old_daemon_releases_its_lock(desk: Desk) -> None:
    fresh = FakeCluster(desk.cluster.folder, shape=Shape.simple(7, quick=True))
    with ThreadPoolExecutor(1) as others:
        with slow_start(desk.cluster):
            began = others.submit(fresh.up)
            desk.until(lambda: users_of_lock(desk.cluster).count(os.getpid()) == 2, "the one that comes second")
            assert (desk.cluster.folder / "state" / "journal").exists()
        began.result()
    assert desk.say("sinfo -h -p main -o %D") == "7"
