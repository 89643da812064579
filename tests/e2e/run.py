"""Run: a run folder as the end-to-end tests look at it: only through its files, as a user would."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterdp.rundir import RunDir, read_events, read_lines
from tests.e2e.cluster import Cluster
from tests.waiting import wait_for


@dataclass(frozen=True)
class Run:
    cluster: Cluster
    files: RunDir
    job: str

    def wait_step(self, step: int, timeout_s: float = 90) -> None:
        """Until the run has reached `step`, in whatever attempt."""
        wait_for(f"step {step}", lambda: self.step() >= step, timeout_s, report=self.account)

    def wait_end(self, timeout_s: float = 150) -> str:
        try:
            return self.cluster.wait_end(self.job, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.account()}") from None

    def step(self) -> int:
        return max((int(line["step"]) for line in self.metrics()), default=0)

    def metrics(self) -> list[dict[str, Any]]:
        """Of all attempts, in the order of the attempts."""
        return [line for a in self.files.attempts() for line in read_lines(self.files.metrics / f"{a.name}.jsonl")]

    def digest(self) -> str:
        """Of every bit of the trained state."""
        digests = [str(line["digest"]) for line in self.metrics() if "digest" in line]
        assert len(digests) == 1, f"{len(digests)} attempts came to the end of the training\n{self.account()}"
        return digests[0]

    def causes(self) -> list[str]:
        """Why each attempt ended, oldest first, without those that found the run over. From 24.05 on Slurm makes one
        when a job ends that was once in a grace time."""
        started = {event["attempt"] for event in self.events("started")}
        return [cause for name, cause in self.all_causes().items() if name in started]

    def all_causes(self) -> dict[str, str]:
        """By attempt; `none` is not on record."""
        return {a.name: a.cause.read_text().strip() if a.cause.exists() else "none" for a in self.files.attempts()}

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.files) if event["event"] == name]

    def account(self) -> str:
        """Everything that helps to understand why a test failed."""
        texts = [self.cluster.run("squeue", "-t", "all"), f"causes: {self.all_causes()}"]
        texts += [f"{e['attempt']} {e}" for e in read_events(self.files)]
        patterns = ("*.out", "logs/*", "attempts/*/logs/*")
        for log in sorted(file for pattern in patterns for file in self.files.path.glob(pattern)):
            texts.append(f"--- {log.relative_to(self.files.path)}\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(texts)


def submit(cluster: Cluster, folder: Path, config: str, *overrides: str) -> Run:
    """`clusterdp submit` in a shell of its own, in `folder`, as on a login node."""
    done = clusterdp(cluster, folder, "submit", config, *overrides, "--cluster", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.match(r"Submitted job (\S+): (.+)\n", done.stdout)
    assert said, done.stdout
    return Run(cluster, RunDir(Path(said[2])), said[1])


def clusterdp(cluster: Cluster, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*cluster.user, cluster.python, "-m", "clusterdp", *words]
    environ = cluster.environ()
    return subprocess.run(command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
