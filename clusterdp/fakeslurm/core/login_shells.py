"""An /etc/profile with which login shells find the commands: for scripts with `#!/bin/bash -l`, or that read
/etc/profile.

Debian's and SUSE's /etc/profile set PATH anew. On a real cluster the commands are in /usr/bin, or its /etc/profile
adds them. So does the /etc/profile that the daemon and every job get (mounts.py). Where they cannot have one,
BASH_ENV makes login shells of bash read a file that does the same.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clusterdp.fakeslurm.core.paths import Paths

PROFILE = Path("/etc/profile")


def write(paths: Paths) -> None:
    """Write the files; after hosts_file.write. For users other than root: only if there is a namespace for the names
    anyway.
    """
    folder = shlex.quote(str(paths.bin))
    line = f'case "$PATH:" in {folder}:*) ;; *) export PATH={folder}:"$PATH" ;; esac'
    paths.bash_env.write_text(f"if shopt -q login_shell; then {line}; fi\n")
    paths.no_path.write_text(f'PATH={folder}:"$PATH"\n')
    paths.profile.unlink(missing_ok=True)
    if PROFILE.exists() and (paths.hosts.exists() or os.geteuid() == 0):
        machines = PROFILE.read_text(errors="surrogateescape")
        paths.profile.write_text(f"{machines}\n# the fake cluster's\n{line}\n", errors="surrogateescape")
        paths.profile.chmod(0o644)  # as the machine's own


def without_path(paths: Paths) -> dict[str, str]:
    """The variables for a batch script whose environment has no PATH: bash takes one of its own, and does not export
    it. There the machine's srun would be found, if it has one.
    """
    return {"BASH_ENV": str(paths.no_path)}


def variables(paths: Paths) -> dict[str, str]:
    """The variables for every process of a job that has no BASH_ENV of its own."""
    return {} if paths.profile.exists() else {"BASH_ENV": str(paths.bash_env)}
