"""The index of the user's runs: a file to which `submit` appends the path of each run, and the folder in which the user
typed the command.

Runs are in `runs/`, or in any folder that `run_dir=` names. The index is a convenience: a listed run may be gone, and a
run that is not listed is found by its folder.
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

BLOCK = 500  # lines of the index that are parsed at once


class NotedRun(NamedTuple):
    """A line of the index: a run folder, the time of its last submit, and the folder from which the run was
    submitted."""

    path: str
    time: float
    submit_dir: str

    def is_of(self, here: str) -> bool:
        """Returns whether the run was submitted from `here`, or the run folder is `here` itself, lies below `here` or
        contains `here`."""
        inside = here.rstrip("/") + "/"
        return here in (self.submit_dir, self.path) or self.path.startswith(inside) or here.startswith(f"{self.path}/")

    def is_of_above(self, here: str) -> bool:
        """Returns whether the run was submitted from a folder above `here`."""
        return bool(self.submit_dir) and here.startswith(f"{self.submit_dir.rstrip('/')}/")


def remember(run: RunDir, jobs: Sequence[str] = ()) -> None:
    """Adds a submitted run and its jobs to the index. An index that cannot be written (no home, no quota) is not an
    error."""
    try:
        record = {"time": time.time(), "run": str(run.path.absolute()), "dir": os.getcwd(), "jobs": list(jobs)}
        path = index_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(path, record, mode=0o600)
    except OSError:
        pass


def index_path() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # the XDG specification says to ignore a relative path
        base = Path("~/.local/state").expanduser()
    return base / "clusterdp" / "runs"


def noted_runs() -> Iterator[NotedRun]:
    """Yields each run of the index once, the last submitted first. A line that is only half written is skipped. Lines
    are parsed on demand: for the latest run, only the end of the file is parsed."""
    lines = last_bytes(index_path(), MOST).splitlines()
    seen: set[str] = set()
    for end in range(len(lines), 0, -BLOCK):
        for record in reversed(parse_lines(lines[max(0, end - BLOCK) : end])):
            path, submit_dir = _path_in(record), record.get("dir")
            if path and path not in seen:
                seen.add(path)
                yield NotedRun(path, time_of(record), submit_dir if isinstance(submit_dir, str) else "")


def noted_as(job: str) -> Iterator[Path]:
    """Yields the runs that were submitted as this job or array, the last submitted first. Lines without the job id are
    not parsed."""
    word = f'"{job}"'.encode()
    lines = [line for line in last_bytes(index_path(), MOST).splitlines() if word in line]
    for record in reversed(parse_lines(lines)):
        jobs = record.get("jobs")
        if isinstance(jobs, list) and job in jobs and (path := _path_in(record)):
            yield Path(path)


def _path_in(record: Mapping[str, Any]) -> str:
    path = record.get("run")
    return path if isinstance(path, str) and path.startswith("/") and "\0" not in path else ""
