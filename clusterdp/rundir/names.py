"""RunDir: the name of every file that a run owns."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

from clusterdp.slurm.jobid import JOB_ID

LOCAL = "local"  # in the place of a job id, in the name of an attempt without Slurm: local.<milliseconds since 1970>
ATTEMPT = re.compile(rf"({JOB_ID}|{LOCAL})\.([0-9]{{1,15}})(?:\.([0-9]{{1,9}}))?")


class _Within:
    """A descriptor whose value is the path of `name` below the path of the object."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, owner: Any, kind: type) -> Path:
        found: Path = owner.path / self.name
        return found


class _Folder:
    """Objects of a class are equal if their paths are."""

    def __init__(self, path: Path):
        self.path = path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Folder) and type(other) is type(self) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"


class Attempt(_Folder):
    """One attempt of a run, which is one start of its ranks: `<job id>.<restart count>`, and after a restart in place
    `<job id>.<restart count>.<number>`."""

    outcome = _Within("outcome")
    cause = _Within("cause")
    saved = _Within("saved")
    error = _Within("error")
    raised = _Within("raised.pkl")
    setup = _Within("setup")
    avoid = _Within("avoid")
    logs = _Within("logs")
    key = _Within("key")
    times = _Within("times.json")
    found = _Within("found.json")
    hang = _Within("hang.txt")
    hung = _Within("hung")
    hang_folder = _Within("hang")
    hang_nodes = _Within("hang/nodes")

    def __init__(self, name: str, path: Path):
        super().__init__(path)
        self.name = name

    def trace(self, rank: int) -> Path:
        return self.path / f"trace-rank-{rank:05d}.json.gz"

    def flight_record(self, node: str) -> Path:
        return self.hang_folder / f"flight-record-{node}.pickle"

    def flight_records(self) -> list[Path]:
        return sorted(self.hang_folder.glob("flight-record-*.pickle"))

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.out"


class RunDir(_Folder):
    """The files of a run. path: the folder of the run."""

    config = _Within("config.yaml")
    script = _Within("job.sbatch")
    code = _Within("code")
    source = _Within("source.json")
    source_diff = _Within("source.diff")
    cancelled = _Within("cancelled")
    stop = _Within("stop")
    note = _Within("note")
    function = _Within("function.pkl")
    result = _Within("result.pkl")
    events = _Within("events")
    metrics = _Within("metrics")
    submits = _Within("submits")
    claims = _Within("claims")
    checkpoints = _Within("checkpoints")
    witness = _Within("witness")

    def attempt(self, name: str) -> Attempt:
        return Attempt(name, self.path / f"attempts/{name}")

    def attempts(self) -> list[Attempt]:
        """Returns the attempts that have begun, the oldest first. They are ordered by job id, because ids increase
        unless Slurm wraps them."""
        return [self.attempt(name) for name in sorted(names_in(self.path / "attempts"), key=_attempt_order)]

    def live_job(self) -> str:
        """Returns the job whose newest attempt has begun, and has no end on record; empty if there is none."""
        jobs = [attempt for attempt in self.attempts() if (place_of(attempt.name) or (LOCAL,))[0] != LOCAL]
        is_live = bool(jobs) and (jobs[-1].path / "began").exists() and not jobs[-1].cause.exists()
        return jobs[-1].name.partition(".")[0] if is_live else ""


def names_in(folder: Path) -> list[str]:
    """Returns the names in a folder; an empty list if the folder cannot be listed."""
    try:
        return os.listdir(folder)
    except OSError:  # the folder does not exist yet, or is not a folder
        return []


def _attempt_order(name: str) -> tuple[int, int, int, str]:
    job, restart, life = place_of(name) or (LOCAL, 0, 0)
    return 0 if job == LOCAL else int(job.partition("_")[0]), restart, life, name


def new_local_attempt() -> str:
    """Returns a name for an attempt that runs without Slurm. Such names sort by time."""
    return f"{LOCAL}.{time.time_ns() // 1_000_000}"


def place_of(attempt: str) -> tuple[str, int, int] | None:
    """Returns the job (or LOCAL), the restart count and the life in an attempt's name; None if the name is not an
    attempt's."""
    found = ATTEMPT.fullmatch(attempt)
    return None if found is None else (found[1], int(found[2]), int(found[3] or 0))
