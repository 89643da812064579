"""Where in a log the lines since some time begin. It is looked for from the end: what is older is not read."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, NamedTuple

from clusterdp.operate.logs.timestamps import time_in
from clusterdp.plainfile import reading
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.tail import CHUNK

LOOK_FOR_TIMES = 4 << 20  # bytes of lines without a time, before it is taken that none has one


class SinceStart(NamedTuple):
    """`timed`: whether the lines from `offset` on were written since then. If not, some may be older: they have no
    times, and nothing but the time of the file's last change is known of them."""

    offset: int
    timed: bool


def start_since(path: Path, since: float) -> SinceStart:
    """A file that was last changed before then is not opened, and all of it is left out."""
    changed = modified(path)
    try:
        if changed is None:
            return SinceStart(0, True)
        if changed < since:
            return SinceStart(path.stat().st_size, True)
        with reading(path) as file:
            return _search(file, since, changed)
    except OSError:
        return SinceStart(0, True)  # that it cannot be read is told by whoever prints it


def _search(file: BinaryIO, since: float, near: float) -> SinceStart:
    size = file.seek(0, 2)
    at, first = size, None  # first: where the earliest line that is new begins
    while at > 0:
        start = max(0, at - CHUNK)
        file.seek(start)
        data = file.read(at - start)
        if start and (cut := data.find(b"\n") + 1):  # what comes before is the end of a line, and comes with the next
            start, data = start + cut, data[cut:]
        end = start + len(data)
        for line in reversed(data.splitlines(keepends=True)):
            begin = end - len(line)
            said = time_in(line[:200].decode(errors="replace"), near)
            if said is not None and said < since:
                if first is None:
                    return SinceStart(end, timed=end == size)
                return SinceStart(first, timed=True)
            if said is not None:
                first, near = begin, said
            end = begin
        if start >= at or (first is None and size - start > LOOK_FOR_TIMES):
            break
        at = start
    return SinceStart(0 if first is None or at <= 0 else first, timed=first is not None or size == 0)
