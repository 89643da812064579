"""The model on disk, as a file of JSON lines. Every change is appended, so that a killed daemon loses nothing.

The last line about a job, node, partition or row is valid. An incomplete last line, left by a killed daemon, is
ignored.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from sys import intern
from typing import Any

from ..core.faults import Faults
from ..core.job_desc import Gpus, JobDesc
from ..core.model import Array, Het, JobRecord, Model, Node, Partition, Share, Step
from ..core.paths import HISTORY
from ..core.state import JobState
from ..core.task_usage import Usage
from ..slurmdbd.accounting import Accounting, AccountingJob, AccountingStep
from ..slurmdbd.history import AppendFile, HistoryFile

GROWN = 32 << 20  # bytes
WORTH = 4  # the journal is rewritten if it has more than WORTH times the needed lines
# Classes whose fields are not written if they have their default value.
SPARSE = (JobRecord, JobDesc, Gpus, Array, Het, Share, Step, AccountingJob, AccountingStep, Faults)
WHOLE = (Node, Partition)


class Journal:
    def __init__(self, path: Path):
        self.path = path
        self._file = AppendFile(path)
        self._at_first = self._file.size

    def write(self, kind: str, key: object, value: Any) -> None:
        self._file.write(json.dumps([kind, key, value], default=_plain))

    def flush(self) -> bool:
        """Writes all waiting lines to the file. Returns False if the disk is full."""
        return self._file.flush()

    @property
    def grown(self) -> bool:
        """Whether the file has grown so much that it should be rewritten without outdated lines."""
        return self._file.size - self._at_first > GROWN  # growth, because the valid lines alone may exceed GROWN

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def read(path: Path) -> Iterator[tuple[str, Any, Any]]:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                try:
                    kind, key, value = json.loads(line)
                except ValueError:
                    continue
                yield kind, key, value


def restore(path: Path, model: Model, accounting: Accounting) -> None:
    """Reads the journal into the model and accounting. Rewrites the journal if most of it is outdated."""
    gc.disable()  # a long history has no garbage, but the collector would scan it again and again
    lines = _restore(path, model, accounting)
    gc.freeze()
    gc.enable()
    if lines > WORTH * (len(model.jobs) + len(accounting.rows) + len(model.nodes)) + 100:
        compact(path, model, accounting)


def _restore(path: Path, model: Model, accounting: Accounting) -> int:
    lines = 0
    for kind, key, value in Journal.read(path):
        lines += 1
        if kind == "job":
            model.jobs[int(key)] = job_from(value)
        elif kind == "row":
            accounting.restore(key, row_from(value))
        elif kind == "node" and key in model.nodes:
            for name, content in value.items():
                setattr(model.nodes[key], name, content)
        elif kind == "partition" and key in model.partitions:
            for name, content in value.items():
                setattr(model.partitions[key], name, content)
        elif kind == "next_id":
            model.next_id = value
        elif kind == "epoch":
            model.epoch = value
        elif kind == "ahead":
            model.ahead_s = value
        elif kind == "faults":
            model.faults = Faults(**value)
    return lines


def compact(path: Path, model: Model, accounting: Accounting) -> None:
    """Rewrites the journal with only the valid lines, if the disk has room."""
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    journal = Journal(fresh)
    for kind, key, value in _all(model, accounting):
        journal.write(kind, key, value)
    whole = journal.flush()
    journal.close()
    if whole:
        fresh.replace(path)
    else:
        fresh.unlink()


def _all(model: Model, accounting: Accounting) -> Iterator[tuple[str, object, object]]:
    yield "next_id", 0, model.next_id
    yield "epoch", 0, model.epoch
    yield "ahead", 0, model.ahead_s
    yield "faults", 0, model.faults
    yield from (("job", job.id, job) for job in model.jobs.values())
    yield from (("node", node.name, node) for node in model.nodes.values())
    yield from (("partition", partition.name, partition) for partition in model.partitions.values())
    yield from (("row", key, row) for key, row in accounting.rows.items())


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


_FIELDS: dict[type, tuple[tuple[str, object], ...]] = {
    kind: tuple((field.name, _default(field)) for field in fields(kind)) for kind in SPARSE
}
_FIELDS |= {kind: tuple((field.name, MISSING) for field in fields(kind)) for kind in WHOLE}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if type(value) in _FIELDS:  # not asdict, which copies all levels and takes half of the time of an array job
        return {name: content for name, default in _FIELDS[type(value)] if (content := getattr(value, name)) != default}
    raise TypeError(f"{type(value).__name__} cannot be written to the journal")


def job_from(data: dict[str, Any]) -> JobRecord:
    data = {name: data[name] for name, _ in _FIELDS[JobRecord] if name in data}
    data["desc"] = _desc_from(data["desc"])
    for name, build in _PARTS.items():
        if data.get(name) is not None:
            data[name] = build(data[name])
    return JobRecord(**_shared(data))


def _desc_from(data: dict[str, Any]) -> JobDesc:
    if "gpus" in data:
        data["gpus"] = Gpus(**data["gpus"])
    return JobDesc(**_shared(data))


def _step_from(data: dict[str, Any]) -> Step:
    if "state" in data:
        data["state"] = JobState(data["state"])
    if data.get("usage"):
        data["usage"] = Usage(*data["usage"])
    return Step(**_shared(data))


_PARTS: dict[str, Callable[[Any], object]] = {
    "array": lambda data: Array(**data),
    "het": lambda data: Het(**data),
    "shares": lambda data: [Share(**_shared(share)) for share in data],
    "past": lambda data: [Share(**_shared(share)) for share in data],
    "lost": lambda data: [Share(**_shared(share)) for share in data],
    "steps": lambda data: [_step_from(step) for step in data],
    "state": JobState,
    "outcome": JobState,
}


def row_from(data: dict[str, Any]) -> AccountingJob:
    steps = tuple(_step_row_from(step) for step in data.get("steps", ()))
    return AccountingJob(**_shared({**data, "steps": steps, "nodes": tuple(data["nodes"])}))


def _step_row_from(data: dict[str, Any]) -> AccountingStep:
    usage = Usage(*data["usage"]) if data.get("usage") else None
    return AccountingStep(**_shared({**data, "nodes": tuple(data["nodes"]), "usage": usage}))


def _shared(data: dict[str, Any]) -> dict[str, Any]:
    """Returns the mapping with interned strings, because equal strings of all rows then share one copy in memory."""
    return {name: intern(value) if type(value) is str else value for name, value in data.items()}


class Records:
    """Writes changes to the journal. If a job changes several times before `flush`, only its last state is written."""

    def __init__(
        self, model: Model, accounting: Accounting, journal: Journal, folder: Path, clock: Callable[[], float]
    ):
        self.accounting, self._model, self._journal, self._clock = accounting, model, journal, clock
        self.history = HistoryFile(folder / HISTORY, model, clock)
        self._changed: dict[int, JobRecord] = {}

    def job(self, job: JobRecord, word: str | None = None) -> None:
        """Records a change of a job. `word`: the state that accounting gets, even if the job changes again before
        `flush`.
        """
        self._model.jobs.note(job)
        self.history.job(job)
        self._changed[job.id] = job
        if word is not None:
            self._write(self._changed.pop(job.id), word)

    def _write(self, job: JobRecord, word: str | None = None) -> None:
        self._journal.write("job", job.id, job)
        due = self._clock() + self._lag_s(job)
        for entry in (
            self.accounting.note(self._model, job, due, word),
            self.accounting.note_part(self._model, job, due),
        ):
            if entry:
                self._journal.write("row", *entry)

    def _lag_s(self, job: JobRecord) -> float:
        """Returns the delay in seconds after which sacct shows the change of a job."""
        settings = self._model.settings
        at_once = settings.release.accounts_held_jobs and job.waits and (job.held or not job.restarts)
        return 0 if at_once else settings.accounting_lag_s

    def number(self) -> int:
        """Returns a new job id, and writes it to the journal."""
        number = self._model.new_id()
        self._journal.write("next_id", 0, number)
        return number

    def node(self, name: str) -> None:
        self._journal.write("node", name, self._model.nodes[name])

    def partition(self, name: str) -> None:
        self._journal.write("partition", name, self._model.partitions[name])

    def clock(self) -> None:
        self._journal.write("epoch", 0, self._model.epoch)

    def ahead(self) -> None:
        self._journal.write("ahead", 0, self._model.ahead_s)

    def faults(self) -> None:
        self._journal.write("faults", 0, self._model.faults)

    def forget(self, job: JobRecord) -> None:
        self.flush()
        self.history.forget(job.id)

    def flush(self) -> bool:
        """Writes all changes to disk. Call `flush` before each answer. Returns False if the disk is full: no step may
        start then."""
        changed, self._changed = self._changed, {}
        for job in changed.values():
            self._write(job)
        self.history.flush()
        return self._journal.flush()

    def tidy(self) -> None:
        """Rewrites the journal without outdated lines when it has grown."""
        if self._journal.grown and self.flush():
            self._journal.close()
            compact(self._journal.path, self._model, self.accounting)
            self._journal = Journal(self._journal.path)

    def close(self) -> None:
        self._journal.close()
        self.history.close()
