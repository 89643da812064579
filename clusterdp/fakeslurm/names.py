"""Names of nodes that resolve, for scripts that take MASTER_ADDR from `scontrol show hostnames`.

The daemon, and so every job, gets an /etc/hosts of its own, in which all nodes are 127.0.0.1. Linux can do that: it
takes a mount namespace, which root may have, and others within a user namespace (see user_namespaces(7)). There, files
of other users belong to nobody, which ssh and sudo do not like; whoever needs those in a job, or has another system,
writes the names into the machine's own /etc/hosts. Then nothing is done here.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

HOSTS = Path("/etc/hosts")
ADDRESS = "127.0.0.1"
CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x8_0000  # linux/mount.h


def unknown(names: Iterable[str]) -> list[str]:
    """Those that the machine's own /etc/hosts does not have. No look at DNS, which may keep us waiting."""
    known: set[str] = set()
    try:
        for line in HOSTS.read_text(errors="replace").splitlines():
            known.update(line.partition("#")[0].split()[1:])
    except OSError:
        pass
    return [name for name in names if name not in known]


def write(names: Iterable[str], hosts: Path) -> None:
    """`hosts`: what the cluster is to see as /etc/hosts; not there afterwards if the machine's own is good enough."""
    hosts.unlink(missing_ok=True)
    missing = unknown(names)
    if missing and HOSTS.exists():
        # The machine's own name, too, which is 127.0.1.1 on Debian: torchrun starts its store where the address of the
        # rendezvous is one of the machine's. Localhost comes first: it stays the name of 127.0.0.1.
        machine = os.uname().nodename
        lines = "".join(f"{ADDRESS}\t{name}\n" for name in ("localhost", machine, *missing))
        own = "".join(_without(machine, line) for line in HOSTS.read_text(errors="surrogateescape").splitlines(True))
        hosts.write_text(f"# the fake cluster's\n{lines}# the machine's\n{own}", errors="surrogateescape")
        hosts.chmod(0o644)  # as the machine's own: a job may have processes of another user


def _without(name: str, line: str) -> str:
    """A line of a hosts file without this name. A name with two addresses has both in `hostname --ip-address`, which
    many sbatch scripts take for one address."""
    address, *names = line.partition("#")[0].split() or [""]
    if name not in names:
        return line
    others = [other for other in names if other != name]
    return f"{address}\t{' '.join(others)}\n" if others else ""


def make_known(hosts: Path) -> None:
    """To this process, which must have one thread, and to all that it starts from now on: `hosts` is their /etc/hosts.
    The file is removed if that cannot be done here."""
    if not hosts.exists():
        return
    trial = os.fork()  # half a namespace is none to live in
    if trial == 0:
        try:
            _mount(hosts)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(trial, 0)[1]:
        hosts.unlink()
    else:
        _mount(hosts)


def _mount(hosts: Path) -> None:
    if sys.platform != "linux":
        raise OSError("no namespaces")
    import ctypes  # deferred: not every Python has it

    def check(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # What is mounted elsewhere later is seen here, but not the other way round.
    check(libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None))
    check(libc.mount(os.fsencode(hosts), os.fsencode(HOSTS), None, MS_BIND, None))
