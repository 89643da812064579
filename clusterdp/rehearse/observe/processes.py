"""The processes of a run's ranks on this machine, with their files, signals and ports, and the page of rank 0.

On Linux, all data come from /proc. On macOS, only the pids are known. All ranks are below the process that has started
the fake cluster: other processes are not read.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from clusterdp import procfs
from clusterdp.fakeslurm.core import processes

PAGE = "/memfd:clusterdp-page"  # the shared page that clusterdp.train.hang makes
PAGE_FORMAT = "4q"  # fields of a page: step, phase, signs, first
RESTORE, EVALUATION = 1, 4  # phases that a page shows
SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
LISTENS = "0A"  # the state of a listening socket in /proc/net/tcp


@dataclass(frozen=True)
class Page:
    """The progress of rank 0: the steps of the run so far, and the phase."""

    step: int
    phase: int


@dataclass(frozen=True)
class OpenFile:
    """A file that a process has open for writing."""

    path: str
    size: int


def ranks_of(run: Path) -> dict[int, list[int]]:
    """Returns the pids of each rank, parents before children. Processes that wait for the next attempt do not count."""
    found: dict[int, list[int]] = {}
    for pid in processes.descendants(os.getpid()):
        environ = _environ(pid)
        rank = _rank(environ) if environ.get("CLUSTERDP_RUN_DIR") == str(run) else ""
        if rank.isdigit() and procfs.name(pid) != "reserve":
            found.setdefault(int(rank), []).append(pid)
    return {rank: sorted(found[rank]) for rank in sorted(found)}


def of_node(job: str, node: str) -> list[int]:
    """Returns the pids of the job's tasks on a node, those of its keeper too."""
    wanted = {"SLURM_JOB_ID": job, "SLURMD_NODENAME": node}
    return [pid for pid in processes.descendants(os.getpid()) if wanted.items() <= _environ(pid).items()]


def _environ(pid: int) -> Mapping[str, str]:
    """Returns the variables with which a process was started, which are read once for each program that it executes: a
    read waits as long as the process holds the lock of its memory, as in the fork of a large process."""
    fields = procfs.stat(pid)
    return _environ_of(pid, *fields[19:20], *fields[42:48])  # its start, and places in its memory


@lru_cache(4096)
def _environ_of(pid: int, *program: str) -> Mapping[str, str]:
    return procfs.environ(pid)


def _rank(environ: Mapping[str, str]) -> str:
    """Returns the variable RANK.

    For a program that is started without RANK, to run as a single process, returns the task's number. The batch script
    and torchrun's agent have a task number, too, but no LOCAL_WORLD_SIZE from the step.
    """
    if "RANK" in environ:
        return environ["RANK"]
    is_task = environ.get("SLURM_STEP_ID", "").isdigit()  # a batch script has a negative SLURM_STEP_ID, or none
    if is_task and "LOCAL_WORLD_SIZE" in environ and "GROUP_RANK" not in environ:
        return environ.get("SLURM_PROCID", "")
    return ""


def variable(pid: int, name: str) -> str:
    """Returns a variable of the environment with which a process was started, or "" if the variable is not set."""
    return _environ(pid).get(name, "")


def send(pids: Iterable[int], number: signal.Signals) -> None:
    processes.send(pids, number)


def are_dead(pids: Iterable[int]) -> bool:
    """Whether the processes and all their threads are dead. Threads are checked because a process is a zombie as soon
    as its first thread has ended."""
    return not any(processes.alive(pid) or len(procfs.threads(pid)) > 1 for pid in pids)


def page_of(pids: Iterable[int]) -> Page | None:
    """Returns the page of the first of these processes that has a page."""
    return read_page(page_file(pids))


def page_file(pids: Iterable[int]) -> str:
    """Returns the path of the page of the first of these processes that has a page, or "".

    Callers keep the path, because the search reads all descriptors.
    """
    found = (
        f"/proc/{pid}/fd/{number}" for pid in pids for number, target in procfs.descriptors(pid) if _is_page(target)
    )
    return next(found, "")


def read_page(file: str) -> Page | None:
    """Returns the content of a page, or None if the page's process is gone. `file`: the result of page_file()."""
    with suppress(OSError, struct.error):
        if _is_page(os.readlink(file)):
            with open(file, "rb") as page:
                step, phase, _, _ = struct.unpack(PAGE_FORMAT, page.read(struct.calcsize(PAGE_FORMAT)))
                return Page(step, phase)
    return None


def _is_page(target: str) -> bool:
    return target.startswith(PAGE)


def written_files(pids: Iterable[int]) -> list[OpenFile]:
    """Returns the regular files that the processes have open for writing, without stdout and stderr."""
    found = {}
    for pid in pids:
        for number, target in procfs.descriptors(pid):
            if number > 2 and target.startswith("/") and not target.startswith(("/dev/", "/memfd:", "/proc/")):
                with suppress(OSError, ValueError):
                    if _writes(pid, number):
                        found[target] = OpenFile(target, os.stat(f"/proc/{pid}/fd/{number}").st_size)
    return list(found.values())


def _writes(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}") as file:
        flags = next(line.split()[1] for line in file if line.startswith("flags:"))
    return bool(int(flags, 8) & (os.O_WRONLY | os.O_RDWR))


def on_signal(pids: Iterable[int], number: signal.Signals = signal.SIGTERM) -> str:
    """Returns the effect of this signal on one rank's program:

    `handled`, `ignored`, `blocked`, or `default` (the signal kills it). The program is the topmost process that is not
    a shell. Returns "" if the effect cannot be known.
    """
    words = [(procfs.name(pid) in SHELLS, procfs.disposition(pid, number)) for pid in pids]
    return next((word for shell, word in words if word and not shell), next((word for _, word in words if word), ""))


def dies_above(pids: Iterable[int], number: signal.Signals = signal.SIGTERM) -> str:
    """Returns the name of a process that this signal kills, though a process below it in the same rank handles it."""
    words = [(pid, procfs.disposition(pid, number)) for pid in pids]
    handling = [pid for pid, word in words if word == "handled"]
    for pid, word in words:
        if word == "default" and any(pid in _above(other) for other in handling):
            return procfs.name(pid)
    return ""


def _above(pid: int) -> list[int]:
    """Returns the pids of a process's ancestors, up to the first that is gone."""
    found: list[int] = []
    while pid > 1 and len(found) < 20 and (fields := procfs.stat(pid)):
        found.append(pid := int(fields[1]))
    return found


def master_ports(pids: Iterable[int]) -> set[int]:
    """Returns the MASTER_PORT of each of these processes."""
    return {int(port) for port in (variable(pid, "MASTER_PORT") for pid in pids) if port.isdigit()}


def listening_ports(pids: Iterable[int]) -> set[int]:
    """Returns the TCP ports on which these processes listen."""
    sockets = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS:
                    sockets[f"socket:[{words[9]}]"] = int(words[1].rpartition(":")[2], 16)
    return {sockets[target] for pid in pids for _, target in procfs.descriptors(pid) if target in sockets}
