"""Packages of the Python index for Slurm: the main job of each prints the same on the fake and on a real Slurm 24.11.

Not among them: SlurmManager 0.1, whose wheel has only its tests, and nanoslurm's Job.wait, which asks squeue for ended
jobs and so waits for ever on a real Slurm.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.cluster import Cluster
from tests.waiting import wait_for

TABLE = Path(__file__).with_name("published_packages.txt").read_text()
ROW = re.compile(r"^=== (.+)\n((?:.+\n)+)---\n((?:.*\n)+?)(?=\n===|\Z)", re.MULTILINE)
PACKAGES = {pins: (program, expected) for pins, program, expected in ROW.findall(TABLE)}


@pytest.fixture(scope="session")
def programs() -> Iterator[Callable[[str], Path]]:
    """Installs a package once in an environment of its own, and returns the folder of its programs."""
    with TemporaryDirectory() as folder:

        @cache
        def installed(pins: str) -> Path:
            home = Path(folder, pins.split("=")[0])
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
            pip = [sys.executable, "-m", "pip", "--python", home / "bin/python", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", "--quiet", *pins.split()], check=True)  # type: ignore[list-item]
            return home / "bin"

        yield installed


def test_table_of_published_packages_is_read_as_a_whole() -> None:
    assert len(PACKAGES) == TABLE.count("\n===") == 15


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("pins", PACKAGES)
@pytest.mark.timeout(300)
def test_published_package_prints_the_same_on_fake_and_real_slurm(
    cluster: Cluster, programs: Callable[[str], Path], project: Path, pins: str
) -> None:
    if cluster.name == "slurm" and " 24.11" not in cluster.run("scontrol", "-V"):
        pytest.skip("the outputs are those of Slurm 24.11")
    folder, (program, expected) = programs(pins), PACKAGES[pins]
    (project / "program.py").write_text(program)
    environ = cluster.environ()
    for unset in ("PYTHONPATH", "VIRTUAL_ENV"):
        environ.pop(unset, None)
    environ |= {"PATH": f"{folder}:{environ['PATH']}", "HOME": str(project), "XDG_CONFIG_HOME": str(project)}
    user = pwd.getpwuid(os.getuid()).pw_name
    environ |= {"USER": user, "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    words = ["bash" if program.startswith("#!") else folder / "python", "program.py"]
    cluster.run("scancel", "--me")
    wait_for("an empty queue", lambda: not cluster.run("squeue", "-h"), 60)
    try:
        done = subprocess.run(words, cwd=project, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.stdout == expected.replace("root", user), done.stderr
    finally:
        cluster.run("scancel", "--me")
