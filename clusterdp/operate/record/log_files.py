"""The paths of a run's logs: logs of the ranks, of torchrun's agents and of the batch script."""

from __future__ import annotations

import re
from pathlib import Path

from clusterdp.rundir import RunDir
from clusterdp.rundir.names import names_in


def batch_log(run: RunDir, job: str | None) -> Path:
    """Returns the file with the batch script's output, which all attempts of a job share. submitit writes this output
    to rank 0's log."""
    ours, submitits = run.path / f"slurm-{job}.out", run.path / "submitit" / f"{job}_0_log.out"
    return submitits if submitits.exists() and not ours.exists() else ours


def rank_logs(logs: Path) -> list[tuple[int, Path]]:
    """Returns the logs of the ranks, ordered by rank. The logs of torchrun's agents, `node-<n>.out` in the same folder,
    are left out."""
    return _numbered(logs, "rank")


def agent_logs(logs: Path) -> list[tuple[int, Path]]:
    """Returns the logs of torchrun's agents, ordered by node."""
    return _numbered(logs, "node")


def _numbered(logs: Path, word: str) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{word}-([0-9]{{1,9}})\.out")
    return sorted((int(match[1]), logs / name) for name in names_in(logs) if (match := pattern.fullmatch(name)))
