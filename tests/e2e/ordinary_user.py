"""An ordinary user beside a real Slurm that root has booted, with a folder and an interpreter of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.slurm.testbed import ROOT, RealSlurm

USER = "games"  # not nobody: for its number, 65534, Slurm 26.05 makes no reservation
ID = pwd.getpwnam(USER).pw_uid
# What setpriv starts is itself found with root's rights. What env starts is not.
AS_USER = ("setpriv", f"--reuid={ID}", f"--regid={ID}", "--clear-groups", "env")


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder of theirs: nobody but root may look into the folders of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="clusterdp-user-"))
    os.chown(folder, ID, ID)
    yield folder
    shutil.rmtree(folder)


def own_variables(home: Path) -> dict[str, str]:
    """Variables with which our package and those that it needs are found, and nothing is read from root's home."""
    packages = os.pathsep.join((str(ROOT), sysconfig.get_path("purelib")))
    own = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), str(home))
    return {**own, "PYTHONPATH": packages}


def own_python(modules: str, home: Path, environ: Mapping[str, str]) -> str:
    """An interpreter that they may run, and that can import these modules; skips the test if there is none."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        words = [*AS_USER, python, "-c", f"import {modules}"]
        if subprocess.run(words, cwd=home, env=dict(environ), capture_output=True).returncode == 0:
            return python
    pytest.skip("an ordinary user may run no Python here that has what clusterdp needs")


def open_to_all(slurm: RealSlurm) -> None:
    """Lets them read the configuration of this Slurm."""
    slurm.folder.chmod(0o755)
    (slurm.folder / "slurm.conf").chmod(0o644)
