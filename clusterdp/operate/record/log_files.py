"""The paths of a run's logs: of its ranks, of torchrun's agents, and of the batch script."""

from __future__ import annotations

import re
from pathlib import Path

from clusterdp.rundir import RunDir
from clusterdp.rundir.names import names_in


def batch_log(run: RunDir, job: str | None) -> Path:
    """The output of the batch script in all attempts of a job. submitit puts it elsewhere, with rank 0's."""
    ours, submitits = run.path / f"slurm-{job}.out", run.path / "submitit" / f"{job}_0_log.out"
    return submitits if submitits.exists() and not ours.exists() else ours


def rank_logs(logs: Path) -> list[tuple[int, Path]]:
    """The logs, by rank. Under torchrun there are `node-<n>.out` of the agents beside them."""
    return _numbered(logs, "rank")


def agent_logs(logs: Path) -> list[tuple[int, Path]]:
    """Those of torchrun's agents, by node."""
    return _numbered(logs, "node")


def _numbered(logs: Path, word: str) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{word}-([0-9]{{1,9}})\.out")
    return sorted((int(match[1]), logs / name) for name in names_in(logs) if (match := pattern.fullmatch(name)))
