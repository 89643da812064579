"""Other releases of Slurm than the machine's: each boots, has ordinary users, and the stories of a job hold there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.slurm import packages, release
from tests.slurm.testbed import ROOT

pytestmark = pytest.mark.slurm

OTHERS = [name for name in release.SUITES if name != "22.05"]
ENVIRON = dict(os.environ)  # before tests/e2e takes the user's settings away
GRACE = "tests/e2e/test_end_in_grace.py::test_job_ending_in_its_grace_time_runs_once_more_only_if_unfinished"
ELEMENT = "tests/e2e/test_sweep.py::test_sweep_element_ending_in_its_grace_time_is_requeued_once_and_alone"
LIFE = [
    "tests/e2e/test_ordinary_user.py::test_job_of_an_ordinary_user_completes_after_preemption_cancel_and_resume",
    f"{GRACE}[slurm-an entry that finishes in it]",
    f"{GRACE}[slurm-a command that saves]",
    f"{GRACE}[slurm-a script that saves and fails]",
    f"{ELEMENT}[slurm-wait]",
    f"{ELEMENT}[slurm-save]",
]

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "srun", "--nodes=2", "id", "-u"]

# The cluster is private to its owner. To others it is opened first.
OPEN = 'scontrol -V; chmod a+rx "${SLURM_CONF%/*}"; chmod a+r "$SLURM_CONF"; cd /; exec "$@"'


def on(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """What a command of Python prints where /usr has that release."""
    if reason := packages.why_not():
        pytest.skip(reason)
    if release.is_entered():
        pytest.skip("a release within a release is none")
    words = [sys.executable, "-m", "tests.slurm.release", name, sys.executable, "-m", *command]
    done = subprocess.run(words, cwd=ROOT, env=ENVIRON, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if refused := re.search("^no Slurm .* here: .*", done.stderr, re.MULTILINE):
        pytest.skip(refused[0])
    return done


def stories_hold_on(name: str, *words: str, marks: str = "slurm") -> None:
    done = on(name, "pytest", "-p", "no:cacheprovider", "-m", marks, *words)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    skipped = re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE)
    if skipped:  # and a skip is not a pass
        pytest.skip("; ".join(skipped))


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_slurm_release_boots_and_runs_a_step_of_an_ordinary_user(name: str) -> None:
    done = on(name, "tests.slurm", "sh", "-c", OPEN, "sh", *AS_NOBODY)
    assert done.returncode == 0, done.stdout + done.stderr
    version, *users = done.stdout.split("\n")[:-1]
    assert version.startswith(f"slurm-wlm {name}.")
    assert users == ["65534"] * 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "24.11" else pytest.mark.long) for n in OTHERS])
def test_job_life_cycle_tests_pass_on_each_slurm_release(name: str) -> None:
    stories_hold_on(name, *LIFE)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OTHERS)
def test_end_to_end_tests_pass_on_each_slurm_release(name: str) -> None:
    stories_hold_on(name, "tests/e2e", "tests/slurm/test_testbed.py", marks="slurm and not long")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_published_packages_print_the_same_on_slurm_24_11() -> None:
    stories_hold_on("24.11", "tests/e2e/test_published_packages.py")


def test_unknown_slurm_release_prints_usage_and_exits_with_2() -> None:
    words = [sys.executable, "-m", "tests.slurm.release", "19.05", "true"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m tests.slurm.release 22.05|")
