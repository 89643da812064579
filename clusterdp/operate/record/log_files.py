"""The paths of a run's logs: those of torchrun's agents and of the batch script. (batch/files/rank_logs.py has those of
the ranks.)"""

from __future__ import annotations

import re
from pathlib import Path

from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.names import names_in

AGENT = re.compile(r"node-([0-9]{1,9})\.out")


def batch_log(run: RunDir, job: str | None) -> Path:
    """Returns the file with the batch script's output, which all attempts of a job share. submitit writes this output
    to rank 0's log."""
    ours, submitits = run.path / f"slurm-{job}.out", run.path / "submitit" / f"{job}_0_log.out"
    return submitits if submitits.exists() and not ours.exists() else ours


def printed_at(logs: Path) -> float | None:
    """Returns the time at which a rank of the first node, or rank 0, printed last; None if it is unknown."""
    return modified(logs / "node-00000.log") or modified(logs / "rank-00000.out")


def agent_logs(logs: Path) -> list[tuple[int, Path]]:
    """Returns the logs of torchrun's agents, ordered by node."""
    return sorted((int(found[1]), logs / name) for name in names_in(logs) if (found := AGENT.fullmatch(name)))
