"""Cluster: a Slurm, fake or real, as the end-to-end tests use it: by its commands alone, the same for both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.waiting import wait_for

# As if submit were called by a rank of another training: its place must not become that of the ranks.
A_RANKS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "other"}
ENDED = {"CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}


@dataclass(frozen=True)
class Cluster:
    """Partitions as of tests/slurm: main, short (one minute of `minute_s`), low (10 s of grace), low0 (none)."""

    name: str
    variables: Mapping[str, str]
    minute_s: float
    user: tuple[str, ...] = ()  # the words before each command that make it another user's
    python: str = sys.executable

    def environ(self) -> dict[str, str]:
        return os.environ | A_RANKS | dict(self.variables)

    def run(self, *words: str) -> str:
        """What a command of the cluster prints; it must succeed."""
        done = self.ask(*words)
        assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}: {done.stderr}"
        return done.stdout

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The result of a command that may fail."""
        return subprocess.run(
            [*self.user, *words], env=self.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True
        )

    def state(self, job: str) -> tuple[str, str]:
        """(state, reason), as squeue has them; ended jobs are listed too."""
        state, _, reason = self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T %r").strip().partition(" ")
        return state, reason

    def start_now(self, job: str) -> None:
        """Let a requeued job begin in two seconds rather than in two minutes.

        Not at once: a job that begins in the second of its requeue fails, as its credential is revoked. And say
        it again after a while: Slurm sets a begin time when the attempt before has ended, which may be after us.
        """
        again = 0.0

        def has_begun() -> bool:
            nonlocal again
            state, reason = self.state(job)
            if state == "PENDING" and reason == "BeginTime" and time.monotonic() > again:
                again = time.monotonic() + 5
                self.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")  # fails if it has just begun
            return state not in ("PENDING", "COMPLETING")

        wait_for(f"job {job} to begin again", has_begun, 60, every_s=0.5, report=lambda: self.run("squeue"))

    def wait_end(self, job: str, timeout_s: float) -> str:
        """The state in which the job ended, for good: a requeued one is started again at once."""

        def ended() -> str:
            state, reason = self.state(job)
            if state == "PENDING" and reason == "BeginTime":
                self.start_now(job)
            return state if state in ENDED else ""

        report = f"it is {self.state(job)}"
        return wait_for(f"the end of job {job}", ended, timeout_s, every_s=0.3, report=lambda: report)

    def preempt(self, job: str) -> None:
        """As it happens to people: a job of a higher tier wants the same nodes. Returns when that has got them."""
        nodes = self.run("squeue", "-h", "-j", job, "-o", "%N").strip()
        words = ["sbatch", "--parsable", "--partition=main", "--exclusive", f"--nodelist={nodes}", "--job-name=higher"]
        higher = self.run(*words, "--output=/dev/null", "--wrap=sleep 600").strip()
        try:
            wait_for(
                f"job {higher} to push job {job} from {nodes}",
                lambda: self.state(higher)[0] == "RUNNING",
                90,
                every_s=0.3,
                report=lambda: self.run("squeue"),
            )
        finally:
            self.run("scancel", higher)

    @contextmanager
    def without_node_of(self, job: str) -> Iterator[None]:
        """The job's only node fails, as for slurmctld one does that it no longer hears of. Put back at the end."""
        node = "NodeName=" + self.run("squeue", "-h", "-j", job, "-o", "%N").strip()
        for state in ("DRAIN", "DOWN"):  # DOWN ends the job. Without DRAIN the node may register and be idle again.
            self.run("scontrol", "update", node, f"State={state}", "Reason=test")
        try:
            yield
        finally:
            self.run("scontrol", "update", node, "State=RESUME")
