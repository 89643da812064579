"""Procfs: reads values of a process in Linux's /proc (proc_pid(5)).

No function raises: if a process is gone, and on macOS, the result is "" or an empty collection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name, which may have blanks and brackets: the state's letter, the
    parent, ..."""
    return read(pid, "stat").rpartition(")")[2].split()


def state(pid: int) -> str:
    """Returns the state's letter, such as S, R, T (stopped), Z (zombie) or D (waits in the kernel)."""
    return "".join(stat(pid)[:1])


def is_alive(pid: int, begun: float | None = None) -> bool:
    """Returns whether a process exists, is not a zombie, and is older than `begun`, a Unix time in seconds: a number
    may have been given again. Without /proc, only whether the process exists."""
    if not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    fields, uptime = stat(pid), read("uptime").split()
    if len(fields) < 20 or not uptime:
        return True
    started = time.time() - float(uptime[0]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return fields[0] != "Z" and (begun is None or started < begun + 2.0)


def name(pid: int) -> str:
    return read(pid, "comm").strip()


def wchan(pid: int) -> str:
    """Returns the kernel function in which the main thread waits; empty if the thread does not wait."""
    found = read(pid, "wchan").strip()
    return "" if found == "0" else found


def command(pid: int) -> list[bytes]:
    """Returns the words of the command line, and an empty word at their end."""
    return read(pid, "cmdline").encode(errors="surrogateescape").split(b"\0")


def environ(pid: int) -> dict[str, str]:
    """Returns the variables that the process was started with."""
    return dict(word.split("=", 1) for word in read(pid, "environ").split("\0") if "=" in word)


def disposition(pid: int, number: int) -> str:
    """Returns what the process does with a signal: `handled`, `ignored`, `blocked`, or `default`."""
    masks = dict(line.split(":", 1) for line in read(pid, "status").splitlines() if line.startswith("Sig"))
    words = (("SigCgt", "handled"), ("SigIgn", "ignored"), ("SigBlk", "blocked"))
    has = (word for mask, word in words if int(masks.get(mask, "0"), 16) >> (number - 1) & 1)
    return next(has, "default") if masks else ""


def threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    return [int(word) for thread in threads(pid) for word in read(pid, f"task/{thread}/children").split()]


def descendants(pid: int, but: Callable[[int], bool] = lambda pid: False) -> list[int]:
    """Returns all processes below `pid`, parents before children. Processes for which `but` returns true are left out,
    and so are their descendants."""
    found = [child for child in children(pid) if not but(child)]
    for parent in found:  # the loop extends the list
        found += [child for child in children(parent) if not but(child)]
    return found


def descriptors(pid: int) -> list[tuple[int, str]]:
    """Returns the descriptor and the target path of each open file."""
    found = []
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # closed meanwhile
                found.append((int(number), os.readlink(f"/proc/{pid}/fd/{number}")))
    return found


def read(*path: object) -> str:
    try:
        with open("/proc/" + "/".join(map(str, path)), encoding="utf-8", errors="surrogateescape", newline="") as text:
            return text.read()
    except OSError:
        return ""


def memory_of_job(root: Path = Path("/")) -> tuple[float, float]:
    """Returns the memory that this job may use on this node, and how much of it is free, in bytes: the least of the
    machine and the control groups of this process (cgroups(7)). Pages of files count as free. (inf, inf) if unknown."""
    found = [(float("inf"), float("inf"))]
    with suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines())
        found.append(tuple(int(lines[name].split()[0]) * 1024.0 for name in ("MemTotal", "MemAvailable")))  # type: ignore[arg-type]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):
                base = root / "sys/fs/cgroup" / kinds
                folder = base / path.lstrip("/")
                for each in (folder, *folder.parents):
                    if not each.is_relative_to(base):
                        break
                    with suppress(OSError, KeyError, ValueError):
                        found.append(_of_group(each, is_second=not kinds))
    return min(limit for limit, _ in found), min(free for _, free in found)


def _of_group(folder: Path, *, is_second: bool) -> tuple[float, float]:
    """Returns the limit of a control group, of the second version or of the first, and how much of it is free."""
    names = ("memory.max", "memory.current") if is_second else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = ((folder / name).read_text() for name in names)
    lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    files = sum(int(lines[("" if is_second else "total_") + name]) for name in ("active_file", "inactive_file"))
    return float(limit), float(limit) - int(used) + files  # ValueError for `max`: no limit
