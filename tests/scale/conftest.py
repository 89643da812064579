"""Jobs of many more ranks than processors, whose ranks are forked from a process that has torch in memory already."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.job_ids import fresh_job_id
from clusterdp.fakeslurm.core.shape import Shape
from tests.e2e.cluster import Cluster

NODES, RANKS_PER_NODE = 8, 8
COMMANDS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")


class CountedCluster(Cluster):
    """A cluster whose commands note each call in a file."""

    @property
    def bin(self) -> Path:
        return Path(self.variables["PATH"].partition(":")[0])

    def calls(self) -> dict[str, Counter[str]]:
        """Returns how often each command was called with which first words, by the caller's rank; the rank is empty if
        the caller is not in a step."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for line in (self.bin / "calls").read_text().splitlines():
            rank, _, words = line.partition("|")
            found[rank][re.sub(r"=\S*| /.*", "", words).strip()] += 1
        return found


@contextmanager
def counted_cluster(nodes: int, folder: Path) -> Iterator[CountedCluster]:
    """A fake cluster with room for RANKS_PER_NODE ranks on a node. folder: for the commands that note their calls."""
    shape = Shape.simple(nodes=nodes, cpus_per_node=RANKS_PER_NODE, quick=True)
    with FakeCluster(shape=replace(shape, settings=replace(shape.settings, first_job_id=fresh_job_id()))) as fake:
        for name in COMMANDS:
            note = f'echo "${{SLURM_STEP_ID:+$SLURM_PROCID}}|{name} $1 $2" >>{folder}/calls'
            (folder / name).write_text(f'#!/bin/sh\n{note}\nexec {fake.bin}/{name} "$@"\n')
            (folder / name).chmod(0o755)
        environ = fake.environ()
        path = f"{folder}:{environ['PATH']}"
        yield CountedCluster("fake", {"PATH": path, "SLURM_CONF": environ["SLURM_CONF"]}, 60.0)


@pytest.fixture(scope="session")
def large_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedCluster]:
    with counted_cluster(NODES, tmp_path_factory.mktemp("bin")) as cluster:
        yield cluster


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty submit directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
