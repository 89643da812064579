"""SlurmCluster: a real Slurm for the drills, with the faults that users may cause on their own jobs."""

from __future__ import annotations

import math
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from clusterdp.errors import SlurmError
from clusterdp.rehearse.observe.file_events import FileEvents
from clusterdp.rehearse.run_spec import NotPossibleHere
from clusterdp.slurm import commands

WAIT_S = 5.0  # seconds between two requests to start a requeued job, which Slurm would start after two minutes
# By the cause that the fake cluster records: other causes that an attempt has on a real cluster.
ON_RECORD = {"preempted": ("requeued", "signal")}


class SlurmCluster:
    """A DrillCluster on a real Slurm. At the end of the `with` block, the job is cancelled if it is not over."""

    ranks_are_here = False
    restart_s = 600.0
    file_events: FileEvents | None = None

    def __init__(self, *, saves_at_term: bool) -> None:
        """`saves_at_term`: whether the ranks save at SIGTERM, and then ask for a requeue."""
        self.saves_at_term = saves_at_term
        self.job = ""
        self._history: list[dict[str, Any]] = []
        self._asked = 0.0

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.job:
            commands.cancel(self.job)

    def wrongly_shared(self, files: Iterable[str]) -> list[str]:
        return []

    def submitted(self, job: str) -> None:
        self.job = job

    def causes_of(self, causes: Sequence[str]) -> tuple[str, ...]:
        return (*causes, *(word for cause in causes for word in ON_RECORD.get(cause, ())))

    def history(self) -> list[dict[str, Any]]:
        return self._history

    def preempt(self, job: str, grace_s: float | None = None) -> None:
        """Ends the job like a preemption, because only Slurm itself can preempt.

        Without a grace time, runs `scontrol requeue`: all processes get TERM, and KILL after KillWait. With a grace
        time, only the ranks get TERM, and must ask for the requeue themselves.
        """
        if not grace_s:
            commands.requeue(job)
        elif self.saves_at_term:
            commands.terminate_steps(job)
        else:
            raise NotPossibleHere("on a real cluster Slurm alone preempts with a grace time")
        self._note("preempt")

    def advance(self, seconds: float) -> None:
        """Lowers the job's time limit by `seconds`, to a whole minute that is not over yet."""
        shown = commands.show_job(self.job)
        used_s, limit_s = _seconds(shown["RunTime"]), _seconds(shown["TimeLimit"])
        minutes = max(1, math.ceil(max(limit_s - seconds, used_s) / 60))
        commands.update_job(self.job, f"TimeLimit={minutes}")
        self._note("advance")

    def kill_rank(self, job: str, rank: int) -> None:
        """Kills all ranks, because scancel cannot choose a single rank."""
        commands.kill_step(job)
        self._note("kill-rank")

    def fail(self, node: str) -> None:
        raise NotPossibleHere("on a real cluster only an administrator can take a node away")

    def run(self, *words: str) -> str:
        """Runs a command, and returns its output. Raises SlurmError if the command fails."""
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise SlurmError(f"{words[0]}: failed (exit {done.returncode}). It says: {done.stderr.strip()}")
        return done.stdout

    def start_soon(self) -> None:
        """Sets the start time of a requeued job to now, because Slurm would let it wait for two minutes."""
        if time.monotonic() - self._asked < WAIT_S:
            return
        self._asked = time.monotonic()
        row = commands.job_states([self.job]).get(self.job)
        if row is not None and row.state == "PENDING" and row.reason == "BeginTime":
            commands.update_job(self.job, "StartTime=now+2")

    def _note(self, event: str) -> None:
        self._history.append({"event": event, "time": time.time()})


def _seconds(text: str) -> float:
    """Returns the seconds of a time like `1-02:03:04` or `02:03:04`, and infinity for UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not match:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
