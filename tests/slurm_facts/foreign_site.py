"""`python -m tests.slurm_facts.foreign_site OUT WORDS...`: record_site.py on a real Slurm of another shape, as nobody.

A stand-in for a cluster of other people: other names, another KillWait, memory as a resource, and no rights. The script
runs from a copy that has nothing else of the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm.testbed import ROOT, RealSlurm

NOBODY = 65534
CHANGES = {
    "NodeName=n": "NodeName=gpu-a-",
    "PartitionName=main": "PartitionName=gpu",
    "PartitionName=low ": "PartitionName=scavenge-long ",
    "PartitionName=short": "PartitionName=debug",
    "KillWait=5": "KillWait=10",
    "CR_Core": "CR_Core_Memory",
    "TaskPlugin=task/none": "TaskPlugin=task/affinity",
    "MinJobAge=3600": "MinJobAge=600\nEnforcePartLimits=ALL",
}
ROLES = ["--partition=low=scavenge-long", "--partition=short=debug"]


def main(out: str, *words: str) -> int:
    folder = Path(out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, NOBODY, NOBODY)
    with RealSlurm(changes=CHANGES) as slurm:
        copy = slurm.folder / "tests" / "slurm_facts"
        shutil.copytree(ROOT / "tests/slurm_facts", copy)
        # The cluster is private to its owner. To others it is opened first.
        slurm.folder.chmod(0o755)
        (slurm.folder / "slurm.conf").chmod(0o644)
        who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        command = [*who, "/usr/bin/env", "python3", str(copy / "record_site.py"), str(folder), *ROLES, *words]
        environ = os.environ | slurm.environ() | {"HOME": "/nonexistent"}
        return subprocess.run(command, cwd=folder, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
