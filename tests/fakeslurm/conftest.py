"""A fake cluster for tests: quick, private to the test, and gone afterwards."""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from clusterdp.fakeslurm.core.shape import Shape, SlurmConf


class Desk:
    """Someone who sits in a folder with the cluster's commands on PATH."""

    def __init__(self, cluster: FakeCluster, folder: Path):
        self.cluster, self.folder = cluster, folder

    def run(self, *words: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in self.cluster.environ().items() if not name.startswith("SBATCH_")}
        return subprocess.run(
            words,
            env={**variables, **environ},
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
        )

    def say(self, line: str) -> str:
        """stdout of a command that must succeed."""
        done = self.run(*shlex.split(line))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, *words: str, script: str) -> str:
        """The id of a job that runs this bash text."""
        path = self.folder / f"script-{len(list(self.folder.glob('script-*')))}.sh"
        path.write_text("#!/bin/bash\n" + script)
        return self.say(
            shlex.join(["sbatch", "--parsable", "--output=%j.out", "--open-mode=append", *words, str(path)])
        )

    def output(self, job: str) -> str:
        return (self.folder / f"{job}.out").read_text()

    def until(self, condition: Callable[[], object], what: str = "", within_s: float = 120) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
            time.sleep(0.02)

    def until_said(self, job: str, text: str) -> None:
        path = self.folder / f"{job}.out"
        self.until(lambda: path.exists() and text in path.read_text(), f"{text!r} in the output of {job}")

    def field(self, job: str, name: str) -> str:
        words = dict(word.split("=", 1) for word in self.say(f"scontrol -o show job {job}").split() if "=" in word)
        return words[name]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(quick=True) as cluster:
        yield cluster


@pytest.fixture
def desk(cluster: FakeCluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[FakeCluster]:
    """One for all tests of a file that do not disturb each other."""
    with FakeCluster(quick=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster_22_05() -> Iterator[FakeCluster]:
    with FakeCluster(quick=True, slurm_version="22.05") as cluster:
        yield cluster


@pytest.fixture
def desk_22_05(cluster_22_05: FakeCluster, tmp_path: Path) -> Desk:
    """For what 24.11, of which the others are, does differently."""
    return Desk(cluster_22_05, tmp_path)


@pytest.fixture
def shared_desk(shared_cluster: FakeCluster, tmp_path: Path) -> Desk:
    return Desk(shared_cluster, tmp_path)


def impatient(**changes: float) -> Shape:
    """A quick cluster whose waiting times are short enough for a test."""
    quick = Shape.simple(quick=True)
    settings = {**quick.settings.__dict__, "kill_wait_s": 0.6, "look_s": 0.2, "requeue_delay_s": 0.2, **changes}
    partitions = tuple(
        part.__class__(**{**part.__dict__, "grace_s": 0.4 * 60 / settings["minute_s"] if part.grace_s else 0})
        for part in quick.partitions
    )
    return Shape(quick.nodes, partitions, SlurmConf(**settings), quick.name)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Desk]:
    """KillWait 0.6 s, grace 0.4 s, a minute lasts 1.2 s."""
    with FakeCluster(shape=impatient(minute_s=1.2)) as cluster:
        yield Desk(cluster, tmp_path)
