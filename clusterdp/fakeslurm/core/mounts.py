"""Mounts files of the cluster over files of the machine, such as /etc/hosts, visible only to the cluster and its jobs.

Mounts need Linux and a mount namespace. Root can make a mount namespace. Other users need a user namespace, too
(user_namespaces(7)), in which files of other users belong to `nobody`. In a user namespace, ssh and sudo may fail.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000  # linux/sched.h
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x8_0000  # linux/mount.h


def show(files: Mapping[Path, Path]) -> None:
    """Mounts the cluster's files (keys) over the machine's files (values), for this process and all processes that it
    starts from now on. The process must have one thread. Files of the cluster that do not exist are skipped. If mounts
    are impossible, the cluster's files are deleted.
    """
    files = {ours: machines for ours, machines in files.items() if ours.exists()}
    if not files:
        return
    trial = os.fork()  # a child process tries first, because a failure leaves a process in a half-made namespace
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
    """Gives this process, which must have one thread, a mount namespace of its own. Raises OSError if a namespace is
    impossible. A user other than root gets a user namespace, too, unless this process is already allowed to mount.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", CLONE_NEWNS)
    except PermissionError:
        _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")  # without this, the kernel refuses to write gid_map
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Later mounts of the machine appear in this namespace. Mounts made in this namespace do not appear on the machine.
    _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)


def bind(source: Path, target: Path) -> None:
    """Shows a file or folder, with all mounts below it, at another path in this process's namespace."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None)


def _call(name: str, *arguments: int | bytes | None) -> None:
    """Calls a function of the C library. Raises OSError if the function fails."""
    if sys.platform != "linux":
        raise OSError("no namespaces")
    import ctypes  # imported here because some builds of Python lack ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
