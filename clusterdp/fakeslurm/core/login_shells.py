"""An /etc/profile with which login shells find the commands, for scripts that have `#!/bin/bash -l` or read
/etc/profile.

The /etc/profile of Debian and SUSE overwrites PATH. On a real cluster the commands are in /usr/bin, or /etc/profile
adds their folder. The /etc/profile that the daemon and every job see (mounts.py) adds the folder of the commands, too.
Where mounts are impossible, BASH_ENV makes login shells of bash read a file that adds the folder.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from .paths import Paths

PROFILE = Path("/etc/profile")


def write(paths: Paths) -> None:
    """Writes the /etc/profile and the files for BASH_ENV. Call `write` after hosts_file.write: users other than root
    get an /etc/profile only if hosts_file.write wrote a file, because only then the cluster needs a namespace anyway.
    """
    folder = shlex.quote(str(paths.bin))
    line = f'case "$PATH:" in {folder}:*) ;; *) export PATH={folder}:"$PATH" ;; esac'
    paths.bash_env.write_text(f"if shopt -q login_shell; then {line}; fi\n")
    paths.no_path.write_text(f'PATH={folder}:"$PATH"\n')
    paths.profile.unlink(missing_ok=True)
    if PROFILE.exists() and (paths.hosts.exists() or os.geteuid() == 0):
        machines = PROFILE.read_text(errors="surrogateescape")
        paths.profile.write_text(f"{machines}\n# the fake cluster's\n{line}\n", errors="surrogateescape")
        paths.profile.chmod(0o644)  # readable for all, like the machine's file


def without_path(paths: Paths) -> dict[str, str]:
    """Returns the variables for a batch script whose environment has no PATH. Without these variables, bash uses a
    default PATH, does not export it, and finds the machine's srun, if any.
    """
    return {"BASH_ENV": str(paths.no_path)}


def variables(paths: Paths) -> dict[str, str]:
    """Returns the variables for every process of a job that has no BASH_ENV of its own."""
    return {} if paths.profile.exists() else {"BASH_ENV": str(paths.bash_env)}
