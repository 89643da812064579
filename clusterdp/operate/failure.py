"""Which rank failed first, and the end of its log. It is found in the logs: a rank that dies writes no report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterdp.rundir import RunDir
from clusterdp.rundir.causes import FAULTS
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.names import names_in
from clusterdp.rundir.tail import last_bytes, last_lines

if TYPE_CHECKING:
    from clusterdp.operate.attempt_history import AttemptHistory
    from clusterdp.operate.run_history import RunHistory

LINES = 15
LOOK = 8 * 1024  # the end of a log, in bytes: one read for each rank
TRACEBACK = re.compile(rb"^(\[rank\d+\]:\s*)?Traceback \(most recent call last\)|^Fatal Python error", re.MULTILINE)
# What a rank prints because another one has died.
ECHO = re.compile(
    rb"Connection (closed by peer|reset by peer|refused)|Broken pipe|DistNetworkError|DistBackendError|"
    rb"NCCL communicator was aborted|Socket Timeout|Timed out waiting|gloo/transport"
)
# What our ranks say of the one that failed first.
NAMED = re.compile(rb"^clusterdp: .*another(?: rank's failure| failed): rank (\d{1,9}): ", re.MULTILINE)
SRUN = re.compile(r"srun: error: \S+: tasks? (\d{1,9})[\d,-]*: (?!Terminated)(.+)")


@dataclass(frozen=True)
class Failure:
    """`log`: the file that says most. `rank`: whose log it is; None for the batch script's. `said`: srun's message."""

    rank: int | None
    log: Path | None
    lines: list[str]
    said: str = ""


def batch_log(run: RunDir, job: str | None) -> Path:
    """What the batch script printed, in all attempts of a job. submitit puts it elsewhere, with rank 0's."""
    ours, submitits = run.path / f"slurm-{job}.out", run.path / "submitit" / f"{job}_0_log.out"
    return submitits if submitits.exists() and not ours.exists() else ours


def rank_logs(logs: Path) -> list[tuple[int, Path]]:
    """The logs, by rank. Under torchrun there are `node-<n>.out` of the agents beside them."""
    return _numbered(logs, "rank")


def find_failure(history: RunHistory) -> Failure:
    """The failure of the newest attempt that ran anything; that of the batch script if none did."""
    last = _last_that_failed(history)
    batch = batch_log(history.run, history.job)
    if last is None or last.job != history.job:
        return Failure(None, batch if batch.exists() else None, last_lines(batch, LINES))
    logs = history.run.attempt(last.name).logs
    said = _srun_says(batch)
    culprit = _first_to_fail(rank_logs(logs)) or _first_to_fail(_numbered(logs, "node"))
    if culprit is None and said is not None:
        culprit = next(((rank, log) for rank, log in rank_logs(logs) if rank == said[0]), None)
    words = said[1] if said else ""
    if culprit is not None and last_bytes(culprit[1]).strip():
        rank = culprit[0] if culprit[1].name.startswith("rank-") else None
        return Failure(rank, culprit[1], last_lines(culprit[1], LINES), words)
    return Failure(None, batch if batch.exists() else None, last_lines(batch, LINES), words)


def _last_that_failed(history: RunHistory) -> AttemptHistory | None:
    """The newest attempt, without those that only looked at what the earlier ones came to."""
    heard = (attempt for attempt in reversed(history.attempts) if attempt.heard)
    return next((attempt for attempt in heard if not _only_looked(history.run, attempt)), history.last)


def _only_looked(run: RunDir, attempt: AttemptHistory) -> bool:
    if attempt.cause == "gave-up":
        return not _ran(run, attempt)
    return (attempt.cause in FAULTS or attempt.cause == "stopped") and not attempt.ran


def _ran(run: RunDir, attempt: AttemptHistory) -> bool:
    """Whether the attempt started its program. One that gives up may do so before or after that."""
    logs = run.attempt(attempt.name).logs
    return bool(rank_logs(logs) or _numbered(logs, "node"))


def _first_to_fail(logs: list[tuple[int, Path]]) -> tuple[int, Path] | None:
    """The rank whose failure caused the others'. A rank that others name comes first: its log may have only one line.
    Else it is the earliest log that ends in a traceback, where the traceback does not come from another rank's
    death."""
    found = []
    named: set[int] = set()
    said_why: dict[int, Path] = {}
    for rank, log in logs:
        end = last_bytes(log, LOOK)
        echo = bool(ECHO.search(end))
        named.update(map(int, NAMED.findall(end)))
        if TRACEBACK.search(end):
            found.append((echo, modified(log) or 0.0, rank, log))
        if not echo:
            said_why[rank] = log
    if causes := sorted(named & said_why.keys()):
        return causes[0], said_why[causes[0]]
    return min(found)[2:] if found else None


def _srun_says(batch: Path) -> tuple[int, str] | None:
    """srun's last message about a task: an attempt's log is appended to that of the attempt before."""
    found = SRUN.findall(last_bytes(batch).decode(errors="replace"))
    return (int(found[-1][0]), found[-1][1].strip()) if found else None


def _numbered(logs: Path, word: str) -> list[tuple[int, Path]]:
    pattern = re.compile(rf"{word}-([0-9]{{1,9}})\.out")
    return sorted((int(match[1]), logs / name) for name in names_in(logs) if (match := pattern.fullmatch(name)))
