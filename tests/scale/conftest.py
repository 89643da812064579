from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.fakeslurm.core.shape import Shape
from tests.e2e.cluster import Cluster

NODES, RANKS_PER_NODE = 8, 8


@pytest.fixture(scope="session")
def large_cluster() -> Iterator[Cluster]:
    """A fake cluster of 8 nodes with room for 64 ranks."""
    shape = Shape.simple(nodes=NODES, cpus_per_node=RANKS_PER_NODE, quick=True)
    with FakeCluster(shape=replace(shape, settings=replace(shape.settings, first_job_id=fresh_job_id()))) as fake:
        environ = fake.environ()
        yield Cluster("fake", {name: environ[name] for name in ("PATH", "SLURM_CONF")}, 60.0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty submit directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
