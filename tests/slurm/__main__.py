"""`python -m tests.slurm [COMMAND...]`: a real Slurm for as long as COMMAND (or your shell) runs."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.slurm import packages
from tests.slurm.testbed import RealSlurm


def main() -> int:
    if reason := packages.why_not():
        print(reason, file=sys.stderr)
        return 1
    with RealSlurm() as slurm:
        command = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
        return subprocess.run(command, env=os.environ | slurm.environ()).returncode


if __name__ == "__main__":
    sys.exit(main())
