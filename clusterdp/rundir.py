"""RunDir: the name of every file that a run owns, and how its ledger is written and read.

    config.yaml                       the resolved config, as submitted
    job.sbatch                        the script; `sbatch job.sbatch` by hand does what `clusterdp submit` did
    code/                             the snapshot that every attempt runs
    attempts/<job>.<restart>/         one folder an attempt, made by the batch script
        outcome                       `<done|requeue|stop|overtaken> <reason> <step>`: the ranks' last word, all agreed
        cause                         why the attempt ended: the batch script's last word, or the next attempt's
        exit                          the program's exit code, and how many seconds it ran
        saved                         the last step that this attempt committed a checkpoint of
        key                           of the notes that the ranks leave each other; nobody but the owner can read it
        chain                         the first job of the chain of resubmissions that this attempt belongs to
        times.json                    where the steps' time went, by rank, and what that means
        found.json                    what `clusterdp profile --find` has found, as lines
        trace-rank-00000.json.gz      some steps as torch.profiler saw them, if profile.trace asks for it
        logs/rank-00003.out           what rank 3 printed
    submits/000001                    who submits a job of the run, or has: the highest number (exclusively created)
    claims/000002                     who owns the folder now: the highest number (exclusively created)
    events/<attempt>-<writer>.jsonl   the ledger, one file a writer
    metrics/<attempt>.jsonl           what rank 0 measured
    tensorboard/ mlruns/ wandb-id mlflow-run-id   if metrics.to asks for them: one run there, over all attempts
    checkpoints/                      unless checkpoint.url names another place
    cancelled                         there if the user cancelled the run: no attempt starts any more

Appending from several machines to one file is not atomic on NFS: hence one file a writer. Readers merge by time.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterdp.errors import RunError
from clusterdp.plainfile import open_plain, read_plain
from clusterdp.slurm.jobid import is_job_id

# Of an event, what is text if it is there. The ledger's other values are numbers.
TEXTS = frozenset(
    "event attempt of job name entry backend dir cluster nodes host cause reason error checkpoint phase".split()
)


@dataclass(frozen=True)
class Attempt:
    """One life of a job: `<job id>.<restart count>`."""

    name: str
    path: Path

    @property
    def outcome(self) -> Path:
        return self.path / "outcome"

    @property
    def cause(self) -> Path:
        return self.path / "cause"

    @property
    def saved(self) -> Path:
        return self.path / "saved"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def key(self) -> Path:
        return self.path / "key"

    @property
    def times(self) -> Path:
        return self.path / "times.json"

    @property
    def found(self) -> Path:
        return self.path / "found.json"

    def trace(self, rank: int) -> Path:
        return self.path / f"trace-rank-{rank:05d}.json.gz"

    def rank_log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank:05d}.out"


@dataclass(frozen=True)
class RunDir:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def cancelled(self) -> Path:
        return self.path / "cancelled"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def submits(self) -> Path:
        return self.path / "submits"

    @property
    def claims(self) -> Path:
        return self.path / "claims"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def attempt(self, name: str) -> Attempt:
        return Attempt(name, self.path / "attempts" / name)

    def attempts(self) -> list[Attempt]:
        """Those that have begun, oldest first (job ids of one run grow, except where Slurm wraps them)."""
        return [self.attempt(name) for name in sorted(_names(self.path / "attempts"), key=_attempt_order)]

    def event_files(self) -> list[Path]:
        return [self.events / name for name in sorted(_names(self.events)) if name.endswith(".jsonl")]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # there is none yet, or something else is in its place
        return []


def _attempt_order(name: str) -> tuple[int, int, str]:
    job, _, restart = name.partition(".")
    return (int(job) if job.isdecimal() else 0, int(restart) if restart.isdecimal() else 0, name)


class Ledger:
    """Appends to this writer's own file of events. `writer` is `submit`, `batch` or `rank0`."""

    def __init__(self, run: RunDir, attempt: str, writer: str):
        self.path = run.events / f"{attempt}-{writer}.jsonl"
        self.attempt = attempt

    def write(self, event: str, **fields: Any) -> None:
        append_line(self.path, {"time": time.time(), "event": event, "attempt": self.attempt, **fields})


def append_line(path: Path, record: dict[str, Any]) -> None:
    """One JSON object as one line in one write, so that a reader sees all of it or, after a kill, a torn last line.

    Where the disk has room for a part of it alone, OSError, and the file is as it was: the next line must not be glued
    to a torn one. The file has no other writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    fd = open_plain(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        try:
            while line:
                line = line[os.write(fd, line) :]
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file that may be missing, have a torn line, or be no file of ours at all."""
    try:
        data = read_plain(path)
    except OSError:
        return
    for line in data.splitlines():
        if (record := parse(line)) is not None:
            yield record


def parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def as_event(record: dict[str, Any]) -> dict[str, Any]:
    """The record without what somebody else must have written: texts that are none, and jobs that Slurm cannot have."""
    return {key: value for key, value in record.items() if key not in TEXTS or _is_sound(key, value)}


def _is_sound(key: str, value: object) -> bool:
    if key == "job":
        return is_job_id(value)
    # No name of a file has a NUL or half a character in it, and to ask for one is an error of another kind.
    return isinstance(value, str) and "\0" not in value and not re.search("[\ud800-\udfff]", value)


def read_events(run: RunDir) -> list[dict[str, Any]]:
    """All writers' events, by time."""
    records = [as_event(record) for path in run.event_files() for record in read_lines(path)]
    return sorted(records, key=_time_of)


def _time_of(record: dict[str, Any]) -> float:
    try:
        return float(record.get("time", 0))
    except (TypeError, ValueError):  # somebody edited it
        return 0.0


def mark_cancelled(run: RunDir, job: str | None) -> None:
    """From now on no attempt starts. To be called before Slurm is told, for a scancel alone is a TERM that looks like a
    preemption, and the job would requeue itself. RunError if it cannot be written; nothing new if it stands already.
    """
    if run.cancelled.exists():
        return
    try:
        write_durably(run.cancelled, f"{time.time():.3f}\n")
        Ledger(run, f"submit-{job}", "cancel").write("cancelled", job=job)
    except OSError as error:
        raise RunError(
            f"{run.cancelled}: cannot be written: {error.strerror}. Without it the job would come back: "
            f"make room or ask the run's owner, and cancel again; `scancel {job}` ends this attempt only."
        ) from None


def write_durably(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Temporary file, fsync, rename, fsync of the folder: a reader, and who looks after a crash, finds the file whole,
    old or new. Text is written as UTF-8.

    mode: what the umask takes from is taken; 0o600 is for the owner alone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
