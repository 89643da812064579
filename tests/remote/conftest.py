"""The clusters behind ssh of the tests: a fake Slurm there, and an account that is a folder."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterdp.fakeslurm.cluster import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape
from tests.remote.sshd import Sshd, needs_sshd

Start = Callable[..., Sshd]


@pytest.fixture(scope="session")
def slurm() -> Iterator[dict[str, str]]:
    """The variables by which a process finds a fake Slurm."""
    with FakeCluster(shape=Shape.simple(quick=True)) as cluster:
        environ = cluster.environ()
        yield {name: environ[name] for name in ("PATH", "SLURM_CONF")}


@pytest.fixture(scope="session")
def start_sshd(tmp_path_factory: pytest.TempPathFactory, slurm: dict[str, str]) -> Iterator[Start]:
    """A function that starts an sshd, with an open master connection unless master=False."""
    needs_sshd()
    with suppress(OSError):
        os.makedirs("/run/sshd", exist_ok=True)
    with ExitStack() as stack:

        def start(master: bool = True, there: dict[str, str] | None = None, **more: Any) -> Sshd:
            folder = tmp_path_factory.mktemp("ssh") / "d"
            sshd = Sshd(folder, there=slurm | (there or {}), **more)
            sshd.profile(f"remote: {{python: {sys.executable}}}\n")
            sshd.start()
            stack.callback(sshd.stop)
            if master:
                sshd.open_master()
            return sshd

        yield start


@pytest.fixture(scope="session")
def sshd(start_sshd: Start) -> Sshd:
    """The cluster that most tests use, whose connection is open."""
    return start_sshd()


@pytest.fixture
def project(sshd: Sshd, request: pytest.FixtureRequest) -> Path:
    """A folder here with a config and its program, whose name no other test has."""
    return make_project(sshd.here / re.sub(r"\W+", "-", request.node.name))


def make_project(folder: Path) -> Path:
    folder.mkdir()
    (folder / "c.yaml").write_text("command: python train.py\n")
    (folder / "train.py").write_text("print('trained')\n")
    return folder
