"""RunDir: the name of every file that a run owns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Attempt:
    """One start of a job: `<job id>.<restart count>`."""

    name: str
    path: Path

    @property
    def outcome(self) -> Path:
        return self.path / "outcome"

    @property
    def cause(self) -> Path:
        return self.path / "cause"

    @property
    def saved(self) -> Path:
        return self.path / "saved"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def times(self) -> Path:
        return self.path / "times.json"

    @property
    def found(self) -> Path:
        return self.path / "found.json"

    def trace(self, rank: int) -> Path:
        return self.path / f"trace-rank-{rank:05d}.json.gz"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.out"


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def cancelled(self) -> Path:
        return self.path / "cancelled"

    @property
    def stop(self) -> Path:
        return self.path / "stop"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def submits(self) -> Path:
        return self.path / "submits"

    @property
    def claims(self) -> Path:
        return self.path / "claims"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def attempt(self, name: str) -> Attempt:
        return Attempt(name, self.path / "attempts" / name)

    def attempts(self) -> list[Attempt]:
        """Those that have begun, oldest first (job ids of one run grow, except where Slurm wraps them)."""
        return [self.attempt(name) for name in sorted(_names(self.path / "attempts"), key=_attempt_order)]

    def event_files(self) -> list[Path]:
        return [self.events / name for name in sorted(_names(self.events)) if name.endswith(".jsonl")]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # there is none yet, or something else is in its place
        return []


def _attempt_order(name: str) -> tuple[int, int, str]:
    job, _, restart = name.partition(".")
    return (int(job) if job.isdecimal() else 0, int(restart) if restart.isdecimal() else 0, name)
