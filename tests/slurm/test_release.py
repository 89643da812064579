"""Other releases of Slurm than the machine's: each boots, and its clients may be ordinary users."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.slurm import packages, release
from tests.slurm.testbed import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.long]

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "srun", "--nodes=2", "id", "-u"]

# The cluster is private to its owner. To others it is opened first.
OPEN = 'scontrol -V; chmod a+rx "${SLURM_CONF%/*}"; chmod a+r "$SLURM_CONF"; cd /; exec "$@"'


@pytest.mark.parametrize("name", [name for name in release.SUITES if name != "22.05"])
def test_it_boots_and_runs_a_step_of_an_ordinary_user(name: str) -> None:
    if reason := packages.why_not():
        pytest.skip(reason)
    try:
        release.fetch(name)
    except (release.NoRelease, OSError) as error:
        pytest.skip(f"Slurm {name} cannot be had here: {error}")
    client = ["sh", "-c", OPEN, "sh", *AS_NOBODY]
    booted = [sys.executable, "-m", "tests.slurm", *client]
    words = [sys.executable, "-m", "tests.slurm.release", name, *booted]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    version, *users = done.stdout.split("\n")[:-1]
    assert version.startswith(f"slurm-wlm {name}.")
    assert users == ["65534"] * 2


def test_an_unknown_release_is_one_line() -> None:
    words = [sys.executable, "-m", "tests.slurm.release", "19.05", "true"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m tests.slurm.release 20.11|")
