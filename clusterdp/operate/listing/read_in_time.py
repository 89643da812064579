"""Many folders read at once. A file system that hangs must not make the others wait for ever."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

PATIENCE_S = 5.0
TICK_S = 0.1
# Python runs one thread at a time, and to take turns has a price: one thread is the quickest, unless it waits. If it
# reads fewer folders than this in a tick, it waits for a network, most likely, and others can wait beside it.
FEW = 50
MORE_THREADS = 7  # for each file system

Found = TypeVar("Found")


def read_in_time(
    paths: Sequence[str], read: Callable[[str], Found], patience_s: float = PATIENCE_S
) -> tuple[dict[str, Found], list[str]]:
    """What `read` returns for each path, and the paths for which it has not returned when nothing has happened for
    `patience_s`. It is called in daemon threads. What it raises is raised here."""
    found: dict[str, Found] = {}
    errors: list[BaseException] = []
    done = threading.Semaphore(0)

    def work(lane: Iterator[str]) -> None:
        try:
            for path in lane:
                found[path] = read(path)
        except BaseException as error:
            errors.append(error)
        done.release()

    def start(lane: Iterator[str]) -> None:
        threading.Thread(target=work, args=(lane,), daemon=True).start()

    lanes = [iter(lane) for lane in _by_file_system(paths)]
    for lane in lanes:
        start(lane)
    running, quiet_s, more = len(lanes), 0.0, MORE_THREADS
    while running and quiet_s < patience_s:
        before = len(found)
        if done.acquire(timeout=TICK_S):
            running, quiet_s = running - 1, 0.0
            continue
        quiet_s = quiet_s + TICK_S if len(found) == before else 0.0
        if len(found) - before < FEW:
            for lane in lanes * more:
                start(lane)
            running, more = running + len(lanes) * more, 0
    if errors:
        raise errors[0]
    read_so_far = dict(found)
    return read_so_far, [path for path in paths if path not in read_so_far]


def _by_file_system(paths: Sequence[str]) -> list[list[str]]:
    """By mount point, and by the names alone: to ask the file system could hang as well."""
    mounts = sorted(_mount_points(), key=len, reverse=True)
    lanes: dict[str, list[str]] = {}
    of_parent: dict[str, str] = {}
    for path in paths:
        parent = os.path.dirname(path)
        if parent not in of_parent:
            of_parent[parent] = next((m for m in mounts if f"{path}/".startswith(m.rstrip("/") + "/")), "")
        lanes.setdefault(of_parent[parent], []).append(path)
    return list(lanes.values())


def _mount_points() -> list[str]:
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            fields = [line.split(" ")[4] for line in file]
    except (OSError, IndexError):  # not Linux
        return []
    return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field) for field in fields]
