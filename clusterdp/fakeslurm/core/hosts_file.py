"""An /etc/hosts in which the names of nodes resolve, for scripts that take MASTER_ADDR from `scontrol show
hostnames`.

The daemon, and so every job, gets an /etc/hosts of its own, in which all nodes are 127.0.0.1 (mounts.py). Where that
is not possible, write the names into the machine's own /etc/hosts; then nothing is done here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

HOSTS = Path("/etc/hosts")
ADDRESS = "127.0.0.1"


def unknown(names: Iterable[str]) -> list[str]:
    """The names that the machine's own /etc/hosts does not have. DNS is not asked, because it may take long."""
    known: set[str] = set()
    try:
        for line in HOSTS.read_text(errors="replace").splitlines():
            known.update(line.partition("#")[0].split()[1:])
    except OSError:
        pass
    return [name for name in names if name not in known]


def write(names: Iterable[str], hosts: Path) -> None:
    """Write `hosts`, which the cluster is to see as /etc/hosts. If the machine's own has all names, there is none."""
    hosts.unlink(missing_ok=True)
    missing = unknown(names)
    if missing and HOSTS.exists():
        # The machine's own name is included, which is 127.0.1.1 on Debian: torchrun starts its store where the
        # rendezvous has an address of the machine. Localhost comes first, so that it stays the name of 127.0.0.1.
        machine = os.uname().nodename
        lines = "".join(f"{ADDRESS}\t{name}\n" for name in ("localhost", machine, *missing))
        own = "".join(_without(machine, line) for line in HOSTS.read_text(errors="surrogateescape").splitlines(True))
        hosts.write_text(f"# the fake cluster's\n{lines}# the machine's\n{own}", errors="surrogateescape")
        hosts.chmod(0o644)  # as the machine's own: a job may have processes of another user


def _without(name: str, line: str) -> str:
    """A line of a hosts file without this name. With two addresses for a name, `hostname --ip-address` prints both,
    which many sbatch scripts take for one address.
    """
    address, *names = line.partition("#")[0].split() or [""]
    if name not in names:
        return line
    others = [other for other in names if other != name]
    return f"{address}\t{' '.join(others)}\n" if others else ""
