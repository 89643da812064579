"""The ledger: the events of a run, as JSON lines. Each process that writes events has its own file."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterdp.errors import RunError
from clusterdp.plainfile import open_plain, read_plain, write_durably
from clusterdp.rundir.names import RunDir
from clusterdp.slurm.jobid import is_job_id

# The fields of an event that are text. Every other value in the ledger is a number.
TEXTS = frozenset(
    (
        "event attempt of job name entry backend dir cluster nodes host cause reason error checkpoint phase verdict "
        "differs partition account"
    ).split()
)


class Ledger:
    """Appends to this writer's own file of events. `writer` is the name of the writer: `submit`, `batch` or `rank0`."""

    def __init__(self, run: RunDir, attempt: str, writer: str):
        self.path = run.events / f"{attempt}-{writer}.jsonl"
        self.attempt = attempt

    def write(self, event: str, **fields: Any) -> None:
        append_line(self.path, {"time": time.time(), "event": event, "attempt": self.attempt, **fields})


def append_line(path: Path, record: dict[str, Any], mode: int = 0o666) -> None:
    """Appends a JSON object as a line in one write: a reader sees the whole line or, after a kill, a torn last line.

    If the disk has room for only a part of the line, restores the file and raises OSError, because the next line must
    not be joined to a torn line. The caller must be the only writer of the file."""
    line = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        fd = open_plain(path, flags, mode)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = open_plain(path, flags, mode)
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
    """Yields the records of a file that may be missing, have a torn line, or contain something else."""
    try:
        data = read_plain(path)
    except OSError:
        return
    yield from parse_lines(data.splitlines())


def parse_lines(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """Returns the records of lines; lines without a record are left out. If all lines are valid, they are parsed at
    once, in a third of the time."""
    try:
        records = json.loads(b"[%b]" % b",".join(lines))
        if len(records) == len(lines) and all(type(record) is dict for record in records):
            return records  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        pass
    return [record for line in lines if (record := parse(line)) is not None]


def parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def as_event(record: dict[str, Any]) -> dict[str, Any]:
    """Returns the record without values that clusterdp cannot have written: a text field that is not text, or an
    impossible job id."""
    return {key: value for key, value in record.items() if key not in TEXTS or _is_sound(key, value)}


def _is_sound(key: str, value: object) -> bool:
    if key == "job":
        return is_job_id(value)
    # A file name contains neither a NUL nor half a character; for such a name, os.open() would raise ValueError.
    return isinstance(value, str) and "\0" not in value and (value.isascii() or not re.search("[\ud800-\udfff]", value))


def mark_cancelled(run: RunDir, job: str | None, durably: bool = True) -> None:
    """Marks the run as cancelled: no attempt starts any more. Call this function before scancel: without the mark, the
    TERM of scancel looks like a preemption, and the job would requeue itself. Raises RunError if the mark cannot be
    written. If the run is marked already, nothing is changed.

    With `durably`, a crash of this host does not undo the mark, but marking a thousand runs takes long.
    """
    _mark(run, run.cancelled, "cancelled", job, writer="cancel", durably=durably)


def mark_told(run: RunDir, job: str) -> None:
    """Records that scancel was run for this job, or that the job was over. Call this function after scancel. A failed
    write is not an error."""
    with suppress(OSError):
        Ledger(run, f"submit-{job}", "cancel").write("cancel-told", job=job)


def mark_stopped(run: RunDir, job: str | None, durably: bool = True) -> None:
    """Marks the run to stop: no attempt starts, and ranks stop at the next agreed step. Apart from this, the same as
    mark_cancelled()."""
    _mark(run, run.stop, "stop-asked", job, writer="stop", durably=durably)


def _mark(run: RunDir, marker: Path, event: str, job: str | None, *, writer: str, durably: bool) -> None:
    if marker.exists():
        return
    try:
        said = f"{time.time():.3f}\n"
        write_durably(marker, said) if durably else marker.write_text(said)
        Ledger(run, f"submit-{job}", writer).write(event, job=job)
    except OSError as error:
        only = f"; `scancel {job}` ends this attempt only" if job else ""
        raise RunError(
            f"{marker}: cannot be written: {error.strerror}. Without it the job would come back: "
            f"make room or ask the run's owner, and try again{only}."
        ) from None
