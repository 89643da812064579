"""Runs workloads on a cluster, real or fake, with its own commands alone; many at a time, for they mostly wait."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from clusterdp.fakeslurm.core.state import JobState

from . import observed, scripts
from .observed import Observation
from .workload import JobRecord, Workload

AT_ONCE = 12
CPUS = 16  # of 32 on four nodes: so there is room for every job on any of them
PATIENCE_S = 150
LOOK_S = 0.3
STUCK = "DependencyNeverSatisfied"


class Stuck(Exception):
    """A workload did not end; the message says in what state."""


class Cluster:
    """A cluster's commands, one look at its queue for all who wait, and room shared out to workloads."""

    def __init__(self, environ: dict[str, str]):
        keep = {name: os.environ[name] for name in ("HOME", "PATH", "USER", "LOGNAME") if name in os.environ}
        cluster = {name: environ[name] for name in ("PATH", "SLURM_CONF")}
        self.environ = {**keep, "LANG": "C.UTF-8", "SHELL": "/bin/bash", **cluster}
        self._room = threading.BoundedSemaphore(CPUS)
        self._special = threading.Lock()
        self._entering = threading.Lock()
        self._looked = 0.0
        self._looking = threading.Lock()
        self._rows: list[tuple[str, str, str]] = []

    def call(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **environ}
        return subprocess.run(
            words, env=environ, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )

    def queue(self) -> list[tuple[str, str, str]]:
        """(id, state, reason) of all jobs that are still known, seen a moment ago at most."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_S:
                done = self.call("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i|%T|%r")
                rows = [line.split("|") for line in done.stdout.splitlines()]
                self._rows = [(row[0], row[1], row[2]) for row in rows if len(row) == 3]
                self._looked = time.monotonic()
            return self._rows

    def room_for(self, workload: Workload) -> ExitStack:
        """Entered as long as the workload runs."""
        stack = ExitStack()
        if any(job.special for job in workload.jobs):
            stack.enter_context(self._special)
        with self._entering:
            for _ in range(min(sum(job.cpus for job in workload.jobs), CPUS)):
                stack.enter_context(self._room)
        return stack


def run_all(workloads: Sequence[Workload], environ: dict[str, str], root: Path) -> list[Observation]:
    """What became of each, in the same order; the folders of the workloads are made below `root`."""
    cluster = Cluster(environ)

    def run(number: int) -> Observation:
        with cluster.room_for(workloads[number]):
            one = Run(cluster, workloads[number], root / f"w{number}")
            try:
                return one.play()
            except Stuck as stuck:
                cluster.call("scancel", *one.ids.values())  # else whose name is the same would wait for them for ever
                return {"stuck": str(stuck)}

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(run, range(len(workloads))))


class Run:
    """One workload on its way."""

    def __init__(self, cluster: Cluster, workload: Workload, folder: Path):
        self.cluster, self.workload, self.folder = cluster, workload, folder
        self.ids: dict[str, str] = {}
        self.said: dict[str, list[str]] = {}  # what commands printed, and their exit status

    def play(self) -> Observation:
        scripts.write(self.workload, self.folder)
        for job in self.workload.jobs:
            self._submit(job)
        for job in self.workload.jobs:
            if job.holds and job.name in self.ids:
                self._act(job)
        self._until(self._over, "the end of all jobs")
        for name, job_id in self.ids.items():
            if any(reason == STUCK for _, reason in self._states(name)):
                self._say(name, "scancel", job_id)
        self._until(self._over_for_good, "the end of the jobs that could never start")
        return observed.observe(self.cluster.call, self.workload, self.folder, self.ids, self.said)

    def _say(self, name: str, *words: str) -> str:
        done = self.cluster.call(*words, cwd=self.folder)
        shown = " ".join(words[:-1] if words[0] in ("scancel", "scontrol") else words[:1])
        self.said.setdefault(name, []).append(f"{shown}: {done.returncode} {done.stdout}{done.stderr}".strip())
        return done.stdout.strip()

    def _submit(self, job: JobRecord) -> None:
        words = ["sbatch", "--parsable", *job.options]
        if not any(word.startswith("--job-name") for word in job.options):
            words.append(f"--job-name={job.name}")
        if job.partition:
            words.append(f"--partition={job.partition}")
        if job.array:
            words.append(f"--array={job.array}")
        if job.dependency:
            condition, other, kill = job.dependency
            if condition != "singleton" and other not in self.ids:
                return
            words.append(f"--dependency={condition}" + ("" if condition == "singleton" else f":{self.ids[other]}"))
            words += ["--kill-on-invalid-dep=yes"] if kill else []
        job_id = self._say(job.name, *words, f"{job.name}.sh")
        if job_id.isdigit():
            self.ids[job.name] = job_id
            self.said[job.name] = ["sbatch: its id"]

    # -- what is done to a job that holds --

    def _act(self, job: JobRecord) -> None:
        name, job_id = job.name, self.ids[job.name]
        self._until(lambda: self._ready(job) or self._ended(name), f"{name} to hold")
        if self._ended(name):
            return
        verb, _, words = job.action.partition(" ")
        if verb == "cancel":
            self._say(name, "scancel", *words.split(), job_id)
            if "USR1" in words or "TERM" in words or "KILL" in words:
                time.sleep(1)  # what does not react goes on
                (self.folder / f"go.{name}").touch()
        elif verb == "step":
            self._say(name, "scancel", f"{job_id}.0")
            time.sleep(1)
            (self.folder / f"go.{name}").touch()
        elif verb in ("requeue", "requeuehold"):
            self._say(name, "scontrol", verb, job_id)
            self._again(name, job_id)
        elif verb == "preempt":
            self._preempt(name, job_id)
        elif verb == "hold":
            self._say(name, "scontrol", "hold", job_id)
            (self.folder / f"go.{name}").touch()
        elif verb == "update":
            self._say(name, "scontrol", "update", "Comment=other", f"JobId={job_id}")
            (self.folder / f"go.{name}").touch()

    def _ready(self, job: JobRecord) -> bool:
        """All that will hold does: the script, or every task of its step."""
        found = {path.name for path in self.folder.glob(f"ready.{job.name}.*")}
        if not job.steps or "hold" in job.before:
            return bool(found)
        tasks = list(self.folder.glob(f"env.{job.name}.x.0.0.*"))
        return bool(found) and len(found) >= self._tasks(tasks)

    def _tasks(self, dumps: list[Path]) -> int:
        for path in dumps:
            for word in path.read_bytes().split(b"\0"):
                if word.startswith(b"SLURM_NTASKS="):
                    return int(word.partition(b"=")[2])
        return 1 << 30

    def _preempt(self, name: str, job_id: str) -> None:
        nodes = self.cluster.call("squeue", "-h", "-j", job_id, "-o", "%N").stdout.strip()
        words = ["sbatch", "--parsable", "--exclusive", "--partition=main", f"--nodelist={nodes}", "--output=/dev/null"]
        other = self.cluster.call(*words, "--wrap=true", cwd=self.folder).stdout.strip()
        self._until(
            lambda: any(i == other and state == "COMPLETED" for i, state, _ in self.cluster.queue()), "the other"
        )
        self._again(name, job_id)

    def _again(self, name: str, job_id: str) -> None:
        """A job that was requeued starts when it may, two minutes later, or when it is told to."""
        self._until(lambda: self._ended(name) or self._pending(name), f"{name} to end or to wait")
        if self._ended(name):
            return
        time.sleep(2)  # slurmd takes an attempt that starts in the second in which it killed the last one for that one
        held = any("held" in reason.lower() for _, reason in self._states(name))
        if held:
            self._say(name, "scontrol", "release", job_id)
        self._say(name, "scontrol", "update", "StartTime=now", f"JobId={job_id}")

    # -- looking --

    def _states(self, name: str) -> list[tuple[str, str]]:
        job_id = self.ids[name]
        return [(state, reason) for i, state, reason in self.cluster.queue() if i.split("_")[0] == job_id]

    def _pending(self, name: str) -> bool:
        return any(state == "PENDING" and reason not in ("None", "Resources") for state, reason in self._states(name))

    def _ended(self, name: str) -> bool:
        states = self._states(name)
        return bool(states) and all(JobState(state).final for state, _ in states)

    def _over(self) -> bool:
        def over(name: str) -> bool:
            states = self._states(name)
            return bool(states) and all(JobState(state).final or reason == STUCK for state, reason in states)

        return all(map(over, self.ids))

    def _over_for_good(self) -> bool:
        return all(map(self._ended, self.ids))

    def _until(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                states = {name: self._states(name) for name in self.ids}
                raise Stuck(f"waited {PATIENCE_S} s in vain for {what}: {states}")
            time.sleep(0.1)
