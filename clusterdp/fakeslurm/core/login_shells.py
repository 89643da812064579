"""Login shells find the cluster's commands: scripts that begin with `#!/bin/bash -l`, or read /etc/profile.

Debian's and SUSE's /etc/profile set PATH anew. A real cluster's commands are in /usr/bin, or its own /etc/profile adds
them; so does that of the daemon and of every job (see mounting.py). Where there can be none, BASH_ENV leads login
shells of bash to a file that does the same: they read it last.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clusterdp.fakeslurm.core.paths import Paths

PROFILE = Path("/etc/profile")


def write(paths: Paths) -> None:
    """After names.write: to users who are not root a namespace is no gain if they have the names without."""
    folder = shlex.quote(str(paths.bin))
    line = f'case "$PATH:" in {folder}:*) ;; *) export PATH={folder}:"$PATH" ;; esac'
    paths.bash_env.write_text(f"if shopt -q login_shell; then {line}; fi\n")
    paths.profile.unlink(missing_ok=True)
    if PROFILE.exists() and (paths.hosts.exists() or os.geteuid() == 0):
        machines = PROFILE.read_text(errors="surrogateescape")
        paths.profile.write_text(f"{machines}\n# the fake cluster's\n{line}\n", errors="surrogateescape")
        paths.profile.chmod(0o644)  # as the machine's own


def variables(paths: Paths) -> dict[str, str]:
    """For every process of a job that has no BASH_ENV of its own."""
    return {} if paths.profile.exists() else {"BASH_ENV": str(paths.bash_env)}
