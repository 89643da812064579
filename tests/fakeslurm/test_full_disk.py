"""A disk that is full under the cluster's folder: what is asked for is refused with the reason, and nothing is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterdp.fakeslurm import FakeCluster
from tests.small_disk import fill, small_disk

from .conftest import Desk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Three megabytes."""
    with small_disk(tmp_path / "disk", mb=3) as place:
        yield place


def test_full_disk_refuses_new_jobs_with_a_reason_but_keeps_earlier_ones(disk: Path, tmp_path: Path) -> None:
    cluster = FakeCluster(disk / "cluster", quick=True).up()
    desk = Desk(cluster, tmp_path)
    try:
        runs = desk.submit(script="echo up; until [ -e go ]; do sleep 0.05; done")
        waits = desk.submit("--hold", script="echo ran >> ran")
        desk.until_said(runs, "up")
        filler = disk / "filler"
        fill(filler)
        refused = desk.run("sbatch", "--array=0-3", "--wrap=true")
        assert refused.returncode == 1
        assert refused.stderr.splitlines() == [
            f"sbatch: error: {cluster.folder}: No space left on device. Make room there.",
            "sbatch: error: Batch job submission failed: I/O error writing script/environment to file",
        ]
        (tmp_path / "go").touch()
        cluster.wait(runs, "COMPLETED")
        for i in range(40):  # more than what is left in the last page of the journal
            desk.say(f"scontrol update JobId={waits} Comment={'x' * 200}{i}")
        desk.say(f"scontrol release {waits}")
        assert desk.say("squeue -h -o %T") == "PENDING"
        assert not (tmp_path / "ran").exists()
        filler.unlink()
        cluster.wait(waits, "COMPLETED")
        os.kill(int((cluster.folder / "daemon.pid").read_text()), signal.SIGKILL)
        states = desk.say("squeue -h -t all -o '%A %T'").splitlines()
        assert sorted(states) == [f"{runs} COMPLETED", f"{waits} COMPLETED"]
        assert (tmp_path / "ran").read_text() == "ran\n"
        desk.cluster.wait(desk.submit(script="true"), "COMPLETED")
    finally:
        cluster.down()


def test_fake_up_on_a_full_disk_fails_with_the_cause(disk: Path) -> None:
    fill(disk / "filler")
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    words = [sys.executable, "-m", "clusterdp", "fake", "up", "--dir", str(disk / "cluster")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) == 1
