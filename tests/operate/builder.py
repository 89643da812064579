"""Run folders as submit, the batch script and the ranks leave them, made by hand and with a clock of their own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from clusterdp.rundir import Attempt, RunDir, append_line

T0 = 1_700_000_000.0


class RunBuilder:
    """Each call is something that happened, a second after the one before."""

    def __init__(self, path: Path):
        self.run = RunDir(path)
        path.mkdir(parents=True)
        self.run.config.write_text("name: digits\n")
        self.now = T0

    def event(self, kind: str, attempt: str, writer: str, **fields: Any) -> None:
        self.now += 1
        record = {"time": self.now, "event": kind, "attempt": attempt, **fields}
        append_line(self.run.events / f"{attempt}-{writer}.jsonl", record)

    def submitted(self, job: str = "7", **fields: Any) -> RunBuilder:
        self.event(
            "submitted", f"submit-{job}", "submit", job=job, **{"name": "digits", "entry": "train:main", **fields}
        )
        return self

    def attempt(self, name: str = "7.0", nodes: str = "n[1-2]", **fields: Any) -> AttemptBuilder:
        """One that the batch script has begun."""
        job, restart, *_ = name.split(".")
        self.run.attempt(name).logs.mkdir(parents=True)
        self.event("started", name, "batch", job=job, restart=int(restart), nodes=nodes, host="n1", **fields)
        return AttemptBuilder(self, self.run.attempt(name))

    def passes(self, seconds: float) -> RunBuilder:
        self.now += seconds
        return self

    def cancelled(self) -> RunBuilder:
        self.run.cancelled.write_text(f"{self.now}\n")
        return self

    def notice(self, why: str = "", job: str = "7") -> RunBuilder:
        """What slurmstepd writes into the job's output as it ends the attempt that runs now."""
        self.now += 1
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.now))
        with (self.run.path / f"slurm-{job}.out").open("a") as log:
            log.write(f"slurmstepd: error: *** JOB {job} ON n1 CANCELLED AT {when}{why and ' ' + why} ***\n")
        return self

    def batch_log(self, text: str, job: str = "7") -> Path:
        path = self.run.path / f"slurm-{job}.out"
        path.write_text(text)
        return path


class AttemptBuilder:
    def __init__(self, builder: RunBuilder, attempt: Attempt):
        self.builder = builder
        self.files = attempt

    def _rank0(self, event: str, **fields: Any) -> None:
        self.builder.event(event, self.files.name, "rank0", **fields)

    def restored(self, step: int, **fields: Any) -> AttemptBuilder:
        self._rank0("restored", step=step, checkpoint=f"step_{step:08d}", **fields)
        return self

    def trained(self, first: int, last: int, total: int | None = 400, **values: Any) -> AttemptBuilder:
        """One record for each step, ten steps a second."""
        for step in range(first, last + 1):
            self.builder.now += 0.1
            self.measured(step=step, total=total, loss=1 / step, **values)
        return self

    def measured(self, **values: Any) -> AttemptBuilder:
        path = self.builder.run.metrics / f"{self.files.name}.jsonl"
        append_line(path, {"time": self.builder.now, **values})
        return self

    def saved(self, step: int) -> AttemptBuilder:
        self._rank0("saved", step=step, seconds=0.1, bytes=1000)
        self.files.saved.write_text(f"{step}\n")
        return self

    def printed(self, text: str, rank: int = 0) -> AttemptBuilder:
        self.files.rank_log(rank).write_text(text)
        return self

    def labelled(self, *lines: str, node: int = 0) -> AttemptBuilder:
        """Lines of the ranks of a node, as srun --label writes them."""
        (self.files.logs / f"node-{node:05d}.log").write_text("".join(f"{line}\n" for line in lines))
        return self

    def queued(self, since: float, until: float) -> AttemptBuilder:
        """Slurm's answer to the batch script."""
        self.builder.event("queued", self.files.name, "batch", since=since, until=until)
        return self

    def spent(self, step: int, **seconds: float) -> AttemptBuilder:
        """What rank 0 says of its time so far."""
        self._rank0("spent", step=step, **{f"{kind}_s": value for kind, value in seconds.items()})
        return self

    def exited(self, code: int = 0) -> AttemptBuilder:
        self.builder.event("exited", self.files.name, "batch", exit=code)
        return self

    def outcome(self, text: str) -> AttemptBuilder:
        self.files.outcome.write_text(text + "\n")
        return self

    def stopped(self, step: int, reason: str = "term") -> AttemptBuilder:
        """In order: all ranks agreed and saved."""
        self._rank0("signal", name=reason.upper(), step=step - 1)
        self.saved(step)
        self._rank0("stopped", step=step, reason=reason)
        return self.outcome(f"requeue {reason} {step}")

    def told_to_end(self) -> AttemptBuilder:
        """TERM reached the batch shell, and what it then asked Slurm forbade it to requeue."""
        self.builder.event("signal", self.files.name, "batch", name="TERM")
        self.builder.event("signal", self.files.name, "batch", name="ending", exit=75)
        return self

    def found_to_be(self, cause: str, by: str) -> AttemptBuilder:
        """The attempt `by` wrote the cause, for this one had left none."""
        self.files.cause.write_text(f"{cause}\n")
        self.builder.event("requeued", by, "batch", cause=cause, of=self.files.name)
        return self

    def restarted(self, cause: str = "crash", **fields: Any) -> AttemptBuilder:
        """After a fault, the next attempt begins in the same allocation."""
        self.builder.event("failed", self.files.name, "batch", cause=cause, exit=1)
        self.builder.event("restarted", self.files.name, "batch", cause=cause, of=self.files.name, **fields)
        self.files.cause.write_text(f"{cause}\n")
        return self

    def requeued(self, cause: str) -> AttemptBuilder:
        self.files.cause.write_text(f"{cause}\n")
        self.builder.event("requeued", self.files.name, "batch", cause=cause, of=self.files.name)
        return self

    def failed(self, cause: str = "crash", **fields: Any) -> AttemptBuilder:
        """The batch script's last word on the whole run."""
        self.files.cause.write_text(f"{cause}\n")
        self.builder.event("failed", self.files.name, "batch", cause=cause, **fields)
        return self

    def finished(self, step: int = 400) -> AttemptBuilder:
        self._rank0("finished", step=step)
        self.outcome(f"done finished {step}")
        self.files.cause.write_text("done\n")
        self.builder.event("finished", self.files.name, "batch", cause="done", step=step)
        return self


def preempted_once(path: Path) -> RunBuilder:
    """The life that the project is about: preempted at step 120, resumed there, now at step 240 of 400."""
    builder = RunBuilder(path).submitted()
    builder.attempt("7.0").trained(1, 120).stopped(120).requeued("preempted")
    builder.attempt("7.1").restored(120).trained(121, 240)
    return builder
