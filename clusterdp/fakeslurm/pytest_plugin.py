"""The pytest plugin of this package (entry point pytest11): the fixture `fake_slurm`.

pytest loads this file at each start, in every project whose environment has it installed. Therefore this file imports
no heavy module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from . import FakeCluster


@pytest.fixture
def fake_slurm_options() -> dict[str, Any]:
    """The arguments of the FakeCluster that `fake_slurm` starts. To change the arguments, override this fixture in
    conftest.py or in a test file."""
    return {"quick": True}


@pytest.fixture
def fake_slurm(fake_slurm_options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Starts a fake Slurm of four nodes for this test alone. Its sbatch, srun, squeue, ... are first on PATH."""
    from . import FakeCluster

    options = fake_slurm_options if "shape" in fake_slurm_options else {"quick": True, **fake_slurm_options}
    with FakeCluster(**options) as cluster:
        for name in ("PATH", "SLURM_CONF"):
            monkeypatch.setenv(name, cluster.env[name])
        yield cluster
