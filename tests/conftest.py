"""What all tests share: the clusters, fake and real, each booted once and only if a test asks for it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.forked import forking_python
from tests.slurm import packages
from tests.slurm.testbed import RealSlurm

# Before torch is loaded: threads of several test processes that share two cores spend their time waiting in loops.
os.environ.setdefault("OMP_NUM_THREADS", "1")
with suppress(ImportError):  # `make gpu-day` needs pytest alone
    import hypothesis

    # No time limit for an example, which would exceed it where other processes have the processors.
    hypothesis.settings.register_profile("no-deadline", deadline=None)
    hypothesis.settings.load_profile("no-deadline")


def pytest_configure(config: pytest.Config) -> None:
    """Hides GPUs from all tests but those of GPUs, so that a workstation with one runs the same tests."""
    chosen = str(config.option.markexpr)
    if "gpu" not in chosen or "not gpu" in chosen:
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[name] = ""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on, collections leave out torch and ten thousand tests, which take half a second to look through."""
    gc.enable()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def an_index_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Else the tests would note their runs among those of whoever runs them, and find these."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A shell starts what it puts in the background with SIGINT ignored, and children would inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_slurm() -> Iterator[RealSlurm]:
    """A real Slurm of four nodes on this machine. Where it cannot be: skipped, but under CI failed."""
    if reason := packages.why_not():
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with RealSlurm() as slurm:
        yield slurm


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python whose processes have torch at once; the usual one where the server could not await its children."""
    if not hasattr(os, "pidfd_open"):
        yield Path(sys.executable)
        return
    own = tmp_path_factory.getbasetemp()
    with forking_python(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as python:
        yield python
