"""The index of the user's runs: a file to which `submit` appends the path of each run and the folder of the submit.

Runs are in `runs/`, or in any folder that `run_dir=` names. The index is a convenience: a run in it may be gone, and a
run that is missing in it is found by its folder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from clusterdp.plainfile import MOST
from clusterdp.rundir import RunDir, append_line, parse_lines
from clusterdp.rundir.lenient_reads import time_of
from clusterdp.rundir.tail import last_bytes

BLOCK = 500  # lines that are parsed at once


class NotedRun(NamedTuple):
    """A run folder, the time of its last submit, and the folder from which it was submitted."""

    path: str
    time: float
    submit_dir: str

    def is_of(self, here: str) -> bool:
        """Returns whether the run was submitted from `here`, or is `here`, or lies below or above it."""
        inside = here.rstrip("/") + "/"
        return here in (self.submit_dir, self.path) or self.path.startswith(inside) or here.startswith(f"{self.path}/")

    def is_of_above(self, here: str) -> bool:
        """Returns whether the run was submitted from a folder above `here`."""
        return bool(self.submit_dir) and here.startswith(f"{self.submit_dir.rstrip('/')}/")


def remember(run: RunDir, jobs: Sequence[str] = ()) -> None:
    """Notes a submitted run and its jobs. A file that cannot be written (no home, no quota) is not an error."""
    try:
        record = {"time": time.time(), "run": str(run.path.absolute()), "dir": os.getcwd(), "jobs": list(jobs)}
        path = index_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(path, record, mode=0o600)
    except OSError:
        pass


def index_path() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG rules ignore a relative path
        base = Path("~/.local/state").expanduser()
    return base / "clusterdp" / "runs"


def noted_runs() -> Iterator[NotedRun]:
    """Yields each run once, the last submitted first. Torn lines are skipped. Lines are parsed on demand: the latest
    run needs only the end of the file."""
    lines = last_bytes(index_path(), MOST).splitlines()
    seen: set[str] = set()
    for end in range(len(lines), 0, -BLOCK):
        for record in reversed(parse_lines(lines[max(0, end - BLOCK) : end])):
            path, submit_dir = _path_in(record), record.get("dir")
            if path and path not in seen:
                seen.add(path)
                yield NotedRun(path, time_of(record), submit_dir if isinstance(submit_dir, str) else "")


def noted_as(job: str) -> Iterator[Path]:
    """Yields the runs that were submitted as this job or array, the last first. Other lines are not parsed."""
    word = f'"{job}"'.encode()
    lines = [line for line in last_bytes(index_path(), MOST).splitlines() if word in line]
    for record in reversed(parse_lines(lines)):
        jobs = record.get("jobs")
        if isinstance(jobs, list) and job in jobs and (path := _path_in(record)):
            yield Path(path)


def _path_in(record: Mapping[str, Any]) -> str:
    path = record.get("run")
    return path if isinstance(path, str) and path.startswith("/") and "\0" not in path else ""
