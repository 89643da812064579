"""Ids of jobs, elements and steps as users write them: 12, 12_3, 12_[1-2,5], 12.0, 12_3.batch."""

from __future__ import annotations

import fcntl
import os
import re
import time
from dataclasses import dataclass, replace

from ..errors import FakeSlurmError
from .model import JobRecord, Model
from .paths import private_place

ROOM = 100  # number of job ids that each cluster has for itself
MOST_INDEXES = 65_536  # maximum number of indexes in one id: more than an array may have, but little memory


@dataclass(frozen=True)
class SelectedStep:
    job: int
    indexes: tuple[int, ...] | None = None  # indexes of the selected array elements; None: all
    step: str | None = None
    offset: int | None = None  # offset of the selected component; None: all components

    def finds(self, job: JobRecord) -> bool:
        """Whether the id names this job, a part of the job, or an array or heterogeneous job that contains it."""
        if job.het and job.het.leader == self.job:
            return self.offset in (None, job.het.offset)
        if self.offset is not None:
            return False
        if self.indexes is not None:
            return bool(job.array and job.array.id == self.job and set(self.indexes) & set(job.array.indexes))
        return job.id == self.job or bool(job.array and job.array.id == self.job)


def parse(text: str) -> SelectedStep | None:
    match = re.fullmatch(r"(\d{1,10})(?:_(\d+|\*|\[[\d,%:-]+\]))?(?:\+(\d{1,10}))?(?:\.(\w+))?", text)
    if not match:
        return None
    indexes = None
    if match[2] and match[2] != "*":
        indexes = _indexes(match[2].strip("[]").partition("%")[0])
    return SelectedStep(int(match[1]), indexes, match[4], None if match[3] is None else int(match[3]))


def _indexes(text: str) -> tuple[int, ...] | None:
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", part)
        if not match or not int(match[3] or 1):
            return None
        indexes = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
        if len(found) + len(indexes) > MOST_INDEXES:
            return None
        found += indexes
    return tuple(found)


def find(model: Model, name: SelectedStep) -> list[JobRecord]:
    """Returns the jobs that the id names. The id of an array selects all records of the array."""
    return [job for job in model.jobs.named(name.job) if name.finds(job)]


def split_list(text: str) -> list[str]:
    """Splits a text at commas outside brackets, and removes blanks."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def single_element(job: JobRecord, index: int) -> JobRecord:
    """Returns a copy of a waiting array's record, which is shown as the element with this index."""
    assert job.array
    return replace(job, array=replace(job.array, indexes=[index], split=True))


def fresh_job_id() -> int:
    """Returns a job id that no other fake cluster of this user has used. Attempts in a run folder are named by job ids,
    and MASTER_PORT follows from the job id: ranks of two jobs with the same id would connect to each other.
    """
    try:
        note = os.open(private_place() / "last-job", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(note, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last = file.read().strip()
            fresh = max(int(time.time() / 10) % 10_000_000, int(last) + ROOM if last.isdigit() else 0)
            file.seek(0)
            file.truncate()
            file.write(f"{fresh}\n")
    except OSError as error:
        remedy = "Free some space there, or make it writable"
        raise FakeSlurmError(f"{error.filename or 'last-job'}: {error.strerror}. {remedy}.") from None
    return fresh
