"""Processes of this machine: finds descendants, watches and signals them.

Linux has subreapers, parent-death signals and /proc. On macOS, process groups and `ps` replace these features of Linux.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from . import procfs

LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
MANY = 4096  # file descriptors
_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)


def adopt_orphans() -> None:
    """Makes this process, instead of init, the new parent of descendants whose parent dies."""
    if _libc:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, even by kill -9. Call `die_with_parent` between fork and
    exec."""
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(1)


def allow_descriptors() -> None:
    """Raises the limit of open descriptors, if the system allows it, because the daemon has hundreds of connections."""
    most = MANY if _hard == resource.RLIM_INFINITY else min(MANY, _hard)
    if _soft != resource.RLIM_INFINITY and _soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, _hard))


def limit_descriptors() -> None:
    """Restores the limit of open descriptors that `allow_descriptors` raised, before a user's program is executed."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (_soft, _hard))


def children(pid: int) -> list[int]:
    if _lists_children():
        return procfs.children(pid)
    return [child for child, parent in _parents().items() if parent == pid]


def descendants(pid: int, but: Callable[[int], bool] = lambda pid: False) -> list[int]:
    """Returns all processes below `pid`, parents before children. Processes for which `but` is true, and their
    descendants, are left out.
    """
    return procfs.descendants(pid, but) if _lists_children() else _descendants_by_table(pid, but)


def _lists_children() -> bool:
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _descendants_by_table(pid: int, but: Callable[[int], bool]) -> list[int]:
    below: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        if not but(child):
            below.setdefault(parent, []).append(child)
    found, at = list(below.get(pid, [])), 0
    while at < len(found):
        found += below.get(found[at], [])
        at += 1
    return found


def _parents() -> dict[int, int]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    return {int(pid): int(parent) for pid, parent in (line.split() for line in listing.splitlines())}


def sizes(pids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns the (resident, virtual) memory in bytes of each of these processes that is alive."""
    wanted = list(pids)
    if not LINUX:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,rss=,vsz="], capture_output=True, text=True).stdout
        rows = (line.split() for line in listing.splitlines())
        return {int(pid): (int(rss) * 1024, int(vsz) * 1024) for pid, rss, vsz in rows if int(pid) in wanted}
    page, found = os.sysconf("SC_PAGE_SIZE"), {}
    for pid in wanted:
        if words := procfs.read(pid, "statm").split():
            found[pid] = int(words[1]) * page, int(words[0]) * page
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Returns the CPU seconds that these processes and their ended children have used."""
    wanted, used = list(pids), 0.0
    if not LINUX:
        listing = subprocess.run(["ps", "-A", "-o", "pid=,time="], capture_output=True, text=True).stdout
        for word, clock in (line.split() for line in listing.splitlines()):
            if int(word) in wanted:
                minutes, seconds = clock.rsplit(":", 2)[-2:]
                used += int(minutes) * 60 + float(seconds)
        return used
    for pid in wanted:
        used += sum(map(int, procfs.stat(pid)[11:15])) / os.sysconf("SC_CLK_TCK")  # utime, stime, cutime, cstime
    return used


def alive(pid: int) -> bool:
    """Whether the process is alive. Returns False for a zombie, and for a process that does not exist."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state = procfs.state(pid)
    return state != "Z" if state else not LINUX or os.path.exists(f"/proc/{pid}")


def start_time(pid: int) -> str:
    """Returns the start time of a process, or "" if no process has the pid. A later process with this pid has another
    time.

    Raises OSError if no descriptor is left, because a "" for a living owner once took a cluster down.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        if LINUX:
            return ""
    return subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def send_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def of_wardens(file: Path) -> list[int]:
    """Returns the processes below the wardens that the file names, each line with a PID and a start time."""
    lines = file.read_text().splitlines() if file.exists() else []
    wardens = (line.split(maxsplit=1) for line in lines)
    return [below for pid, begun in wardens if start_time(int(pid)) == begun for below in descendants(int(pid))]


def marked(assignment: str) -> list[int]:
    """Returns this user's processes that were started with NAME=VALUE in the environment. Only for macOS, where a
    warden does not adopt orphans: reading the environment of a stranger's process may block."""
    mark, found = assignment.encode("utf-8", "surrogateescape"), list[int]()
    if LINUX:
        return found
    listing = subprocess.run(["ps", "-A", "-E", "-ww", "-o", "pid=,command="], capture_output=True).stdout
    for line in listing.splitlines():
        pid, _, rest = line.strip().partition(b" ")
        if b" " + mark in rest and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def wakeup() -> int:
    """Returns the reading end of a pipe, which becomes readable when a child process ends or another signal arrives."""
    wakeup, written = os.pipe()
    for end in (wakeup, written):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wakeup


def ended(wakeup: int) -> Iterator[tuple[int, int, resource.struct_rusage]]:
    """Yields the pid, wait status and resource usage of each child process or adopted orphan that has ended."""
    try:
        os.read(wakeup, 512)
    except BlockingIOError:
        pass
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status, used
