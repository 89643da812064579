"""What /proc tells of a process. Where there is none, as on macOS, nothing is known, and nothing fails."""

from __future__ import annotations

import os
from collections.abc import Iterator

PROC = "/proc"


def state(pid: int) -> str:
    """The state's letter, such as S, R, T (stopped) or D (waits in the kernel); empty if it is not known."""
    return _after_name(pid)[:1]


def cpu_s(pid: int) -> float | None:
    """CPU time, of all threads."""
    fields = _after_name(pid).split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if len(fields) > 13 else None


def wchan(pid: int) -> str:
    """What the main thread waits for in the kernel."""
    said = _read(f"{PROC}/{pid}/wchan").strip()
    return "" if said == "0" else said


def heeds(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal: another would die of it."""
    for line in _read(f"{PROC}/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def children(pid: int) -> list[int]:
    return [int(word) for listed in _children_files(pid) for word in _read(listed).split()]


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def name(pid: int) -> str:
    return _read(f"{PROC}/{pid}/comm").strip()


def _children_files(pid: int) -> Iterator[str]:
    try:
        threads = os.listdir(f"{PROC}/{pid}/task")
    except OSError:
        return
    for thread in threads:
        yield f"{PROC}/{pid}/task/{thread}/children"


def _after_name(pid: int) -> str:
    """The line of `stat` after the name, which may have blanks and brackets of its own."""
    return _read(f"{PROC}/{pid}/stat").rpartition(")")[2].lstrip()


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""
