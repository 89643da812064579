"""What srun and slurmstepd wrote of the ranks into the batch script's log. The first message of an attempt counts: srun
ends the other ranks when one has failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterdp.batch.evidence import TASKS_ENDED
from clusterdp.rundir.tail import last_bytes

# Where the log of an attempt ends and that of the next one begins: Slurm appends to it.
NEXT_ATTEMPT = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ DUE TO (?:JOB REQUEUE|PREEMPTION|NODE FAILURE)")
ENDED = re.compile(r"clusterdp: .* with exit code \d+.* see \S*/attempts/([^/\s]+)/logs")
OUT_OF_MEMORY = re.compile(r"slurmstepd: error: .*(?:oom[-_]kill event|exceeded (?:virtual )?memory limit).*")
# Of torchrun's agent, on the rank of its node that failed first.
ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?\n\s*time\s*: (\S+)\s*\n\s*host\s*: (\S+)\s*\n"
    r"\s*rank\s*: (\d{1,9})[^\n]*\n"
    r"\s*exitcode\s*: (-?\d+)[^\n]*\n(?:\s*error_file[^\n]*\n)?\s*traceback\s*: ([^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class TaskMessage:
    """`line`: the whole of it; `said`: `Exited with exit code 1`, `Segmentation fault (core dumped)`, ..."""

    nodes: str
    ranks: tuple[int, ...]
    said: str
    line: str


def part_of_attempt(batch: Path, attempt: str) -> str:
    """What an attempt wrote into the batch script's log, as far as its last 64 KiB have it: up to the words on its end,
    or else the newest part in which srun reports a rank."""
    parts: list[list[str]] = [[]]
    for line in last_bytes(batch).decode(errors="replace").splitlines():
        parts[-1].append(line)
        ended = ENDED.search(line)
        if ended and ended[1] == attempt:
            return "\n".join(parts[-1])
        if ended or NEXT_ATTEMPT.search(line):
            parts.append([])
    texts = ["\n".join(part) for part in parts]
    return next((text for text in reversed(texts) if TASKS_ENDED.search(text)), texts[-1])


def task_messages(text: str) -> Iterator[TaskMessage]:
    """In the order in which the ranks ended."""
    for match in TASKS_ENDED.finditer(text):
        yield TaskMessage(match[1], _ranks(match[2]), match[3].strip(), match[0])


def _ranks(listed: str, most: int = 100_000) -> tuple[int, ...]:
    """`0-2,5` -> 0, 1, 2, 5."""
    found: list[int] = []
    for first, last in re.findall(r"(\d{1,9})(?:-(\d{1,9}))?", listed):
        found += range(int(first), min(int(last or first) + 1, int(first) + most))
    return tuple(found[:most])


def root_causes(text: str) -> list[TaskMessage]:
    """What torchrun's agent says of the rank of its node that failed first. One that was told to end is none."""
    found = []
    for _, host, rank, code, said in ROOT_CAUSE.findall(text):
        if code != "-15":
            why = said if said.startswith("Signal") else f"Exited with exit code {code}"
            found.append(TaskMessage(host, (int(rank),), why.strip(), f"{said.strip()} exitcode : {code}"))
    return found
