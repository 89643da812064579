"""The clusters on which every end-to-end test runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.fakeslurm.core.shape import PartitionShape, Shape
from tests.e2e.cluster import Cluster
from tests.slurm.testbed import RealSlurm

FAKE_MINUTE_S = 24.0
PARTITIONS = (
    PartitionShape("main", default=True),
    PartitionShape("short", max_minutes=1),
    PartitionShape("low", tier=1, preempt="REQUEUE", grace_s=10),
    PartitionShape("low0", tier=1, preempt="REQUEUE", grace_s=0),
)


@pytest.fixture(autouse=True, scope="session")
def no_settings_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What whoever runs the tests has set for clusterdp or Slurm must not decide how they end."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("CLUSTERDP_", "SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SCANCEL_")):
                patch.delenv(name)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        yield


@pytest.fixture(scope="session")
def fake_cluster() -> Iterator[Cluster]:
    simple = Shape.simple(quick=True, time_scale=60 / FAKE_MINUTE_S)
    # Other workers of pytest have clusters, too: jobs of the same number would have the same MASTER_PORT.
    settings = replace(simple.settings, first_job_id=fresh_job_id())
    with FakeCluster(shape=replace(simple, partitions=PARTITIONS, settings=settings)) as fake:
        environ = fake.environ()
        yield Cluster("fake", {name: environ[name] for name in ("PATH", "SLURM_CONF")}, FAKE_MINUTE_S)


@pytest.fixture(scope="session")
def real_cluster(real_slurm: RealSlurm) -> Cluster:
    return Cluster("slurm", real_slurm.environ(), 60.0)


@pytest.fixture(scope="session", params=["fake", pytest.param("slurm", marks=pytest.mark.slurm)])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue("fake_cluster" if request.param == "fake" else "real_cluster")
    return found


@pytest.fixture(autouse=True)
def forked_ranks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The ranks of a quick test on the fake load no torch. Those of slow ones, which stop ranks, too, are Python's."""
    is_slow = {"slow", "slurm"}.intersection(mark.name for mark in request.node.iter_markers())
    if not is_slow and ("fake_cluster" in request.fixturenames or "fake" in request.node.name):
        profile = tmp_path_factory.mktemp("profile") / "site.yaml"
        profile.write_text(f"launch: {{python: {request.getfixturevalue('forking')}}}\n")
        monkeypatch.setenv("CLUSTERDP_SITE", str(profile))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty submit directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
