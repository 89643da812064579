"""What all tests share: the clusters, fake and real, each booted once and only if a test asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm import packages
from tests.slurm.testbed import RealSlurm


@pytest.fixture(scope="session")
def real_slurm() -> Iterator[RealSlurm]:
    """A real Slurm of four nodes on this machine. Where it cannot be: skipped, but under CI failed."""
    if reason := packages.why_not():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with RealSlurm() as slurm:
        yield slurm
