"""What a real Slurm needs on a machine, and how it gets there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "slurmdbd", "munged", "mariadbd", "mariadb-install-db")
DPKG = "/var/lib/dpkg"
# Daemons live in sbin, which is not on everybody's PATH.
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"


def why_not() -> str | None:
    """Why no Slurm can be booted here, in one line; None if it can."""
    if os.name != "posix" or sys.platform != "linux":
        return f"a real Slurm for tests needs Linux, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "a real Slurm for tests needs root: its node daemons start jobs as their users"
    if _missing() and not shutil.which("apt-get"):
        return f"a real Slurm for tests needs {', '.join(_missing())}, and there is no apt-get to install them"
    return None


def install() -> None:
    """Debian's packages, unless the programs are there already. Workers of pytest boot at the same moment: one
    installs, and the others wait until all is set up."""
    if not os.path.isdir(DPKG):
        return
    folder = os.open(DPKG, os.O_RDONLY)  # dpkg's own locks are files in it
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _missing():
            _install()
    finally:
        os.close(folder)


def _install() -> None:
    print(f"installing Debian's packages {' '.join(PACKAGES)} for a real Slurm", file=sys.stderr, flush=True)
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(apt + words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"apt-get {words[0]} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    if _missing():
        raise RuntimeError(f"{', '.join(_missing())} is missing still, after apt-get install.")


def _missing() -> list[str]:
    return [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
