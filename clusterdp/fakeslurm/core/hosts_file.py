"""An /etc/hosts in which the names of nodes resolve, for scripts that take MASTER_ADDR from `scontrol show
hostnames`.

The daemon and every job see another /etc/hosts, in which all nodes are 127.0.0.1 (mounts.py). Where mounts are
impossible, the user can write the nodes' names into the machine's /etc/hosts, and the cluster makes no other file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

HOSTS = Path("/etc/hosts")
ADDRESS = "127.0.0.1"


def unknown(names: Iterable[str]) -> list[str]:
    """Returns the names that the machine's /etc/hosts does not have. Does not ask DNS, because DNS may be slow."""
    known: set[str] = set()
    try:
        for line in HOSTS.read_text(errors="replace").splitlines():
            known.update(line.partition("#")[0].split()[1:])
    except OSError:
        pass
    return [name for name in names if name not in known]


def write(names: Iterable[str], hosts: Path) -> None:
    """Writes `hosts`, which jobs see as /etc/hosts. Writes no file if the machine's /etc/hosts already has all the
    names."""
    hosts.unlink(missing_ok=True)
    missing = unknown(names)
    if missing and HOSTS.exists():
        # The machine's own name (127.0.1.1 on Debian) becomes 127.0.0.1, too: torchrun starts its store only where the
        # rendezvous address is the machine's. localhost is the first name, which a reverse lookup of 127.0.0.1 returns.
        machine = os.uname().nodename
        lines = "".join(f"{ADDRESS}\t{name}\n" for name in ("localhost", machine, *missing))
        own = "".join(_without(machine, line) for line in HOSTS.read_text(errors="surrogateescape").splitlines(True))
        hosts.write_text(f"# the fake cluster's\n{lines}# the machine's\n{own}", errors="surrogateescape")
        hosts.chmod(0o644)  # readable for all, because a job may have processes of another user


def _without(name: str, line: str) -> str:
    """Returns a line of a hosts file without this name. If a name has two addresses, `hostname --ip-address` prints
    both, and many sbatch scripts read the output as one address.
    """
    address, *names = line.partition("#")[0].split() or [""]
    if name not in names:
        return line
    others = [other for other in names if other != name]
    return f"{address}\t{' '.join(others)}\n" if others else ""
