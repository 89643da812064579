"""The folders of all runs that are known, without a look into them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Set
from pathlib import Path

from clusterdp.operate.find_run import RUNS, is_run
from clusterdp.operate.run_index import NotedRun, noted_runs
from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import modified
from clusterdp.slurm.jobid import is_job_id

PLAIN = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)  # what no shell and nobody here takes for something else


def find_all(everywhere: bool) -> list[NotedRun]:
    """Those of this folder, or `everywhere`, the last submitted first: of the index, and those in `runs/` that are not
    in it. A run of the index may be gone."""
    here = os.getcwd()
    noted = list(noted_runs())
    found = [run for run in noted if everywhere or run.is_of(here)]
    known = {run.path for run in noted}
    for path in set(_folders()) - known:
        run = RunDir(Path(path))
        if is_run(run.path) or not os.access(path, os.X_OK):  # then a look at it says why it is left out
            found.append(NotedRun(path, modified(run.config) or modified(run.path) or 0.0, here))
    paths = {run.path for run in found}
    return sorted((run for run in found if not _is_element(run.path, paths)), key=lambda run: run.time, reverse=True)


def _is_element(path: str, paths: Set[str]) -> bool:
    """By the names alone. An element is noted once it was resumed by itself; its sweep has a row already."""
    parent, _, name = path.rpartition("/")
    return name.isdecimal() and parent in paths


def _folders() -> list[str]:
    try:
        return [entry.path for entry in os.scandir(RUNS.absolute()) if entry.is_dir()]
    except OSError:  # there is none
        return []


class TypedName:
    """What one can type for a run in this folder: a name in `runs/`, else a path."""

    def __init__(self) -> None:
        self.here = os.getcwd().rstrip("/") + "/"
        self.runs = f"{self.here}{RUNS}/"
        self.beside = set(os.listdir("."))

    def __call__(self, path: str) -> str:
        """As shown_path() has it, without a Path: of ten thousand runs each takes its time."""
        name = path[len(self.runs) :] if path.startswith(self.runs) else ""
        if PLAIN.fullmatch(name) and name not in self.beside:
            return name
        first = name.partition("/")[0]
        # A folder of that name here would be meant first, and a number is a job.
        if name and first not in self.beside and not first.startswith(("-", "~")) and not is_job_id(name):
            return shlex.quote(name)
        return shlex.quote(path[len(self.here) :] if path.startswith(self.here) else path)
