"""Shows files to the cluster and its jobs in the place of the machine's, such as an /etc/hosts of their own.

It takes Linux and a mount namespace. Root may have one; others need a user namespace as well (user_namespaces(7)).
In that, files of other users belong to nobody, which ssh and sudo do not like.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x8_0000  # linux/mount.h


def show(files: Mapping[Path, Path]) -> None:
    """Show our files in the place of the machine's, to this process, which must have one thread, and to all that it
    starts from now on. Files that do not exist are left out. All are removed if this is impossible here.
    """
    files = {ours: machines for ours, machines in files.items() if ours.exists()}
    if not files:
        return
    trial = os.fork()  # a trial in a child: a namespace that is only half set up is of no use
    if trial == 0:
        try:
            _show(files)
            os._exit(0)
        finally:
            os._exit(1)
    if os.waitpid(trial, 0)[1]:
        for ours in files:
            ours.unlink()
    else:
        _show(files)


def _show(files: Mapping[Path, Path]) -> None:
    enter_namespace()
    for ours, machines in files.items():
        bind(ours, machines)


def enter_namespace() -> None:
    """Give this process, which must have one thread, a mount namespace of its own; OSError if it cannot have one. A
    user other than root gets a user namespace as well, unless this process has one already in which it may mount.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWNS)
    except PermissionError:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")  # else the kernel takes no gid_map
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Later mounts are seen here, but not the other way round.
    _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)


def bind(source: Path, target: Path) -> None:
    """Show a file or folder, with what is mounted below it, in another place of this process's namespace."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None)


def _call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library; raises OSError."""
    if sys.platform != "linux":
        raise OSError("no namespaces")
    import ctypes  # deferred: not every Python has it

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
