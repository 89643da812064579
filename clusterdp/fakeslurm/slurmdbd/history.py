"""history.jsonl: the events of a cluster, one line each, for people and tests.

Each line has a time (on the cluster's clock, in seconds since 1970) and an event: `state` for a change of a job's
state, or the name of the FakeCluster method that caused a fault on purpose.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.hostlist import compress
from ..core.model import JobRecord, Model


class HistoryFile:
    """Appends events to history.jsonl. The daemon has one HistoryFile."""

    def __init__(self, path: Path, model: Model, clock: Any):
        self._file = AppendFile(path)
        self._clock = clock
        # by job: the last written state, also by the previous daemon
        self._written_states = {job.id: _state(job) for job in model.jobs.values()}

    def write(self, event: str, **about: object) -> None:
        line = {"time": round(self._clock(), 3), "event": event, **about}
        self._file.write(json.dumps(line))

    def job(self, job: JobRecord) -> None:
        """Writes the state of a job if the state has changed."""
        state = _state(job)
        if self._written_states.get(job.id) == state:
            return
        self._written_states[job.id] = state
        more: dict[str, object] = {} if job.reason == "None" else {"reason": job.reason}
        if job.shares:
            more["nodes"] = compress(job.nodes)
        self.write("state", job=job.name_of_id, state=job.shown_state.value, restarts=job.restarts, **more)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def forget(self, job_id: int) -> None:
        self._written_states.pop(job_id, None)


def _state(job: JobRecord) -> tuple[str, int]:
    return job.shown_state.value, job.restarts


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yields all events of the file, without an incomplete last line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


class AppendFile:
    def __init__(self, path: Path):
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.size = os.fstat(self._file).st_size
        self._waiting = bytearray()
        self._complained = False
        if self.size and os.pread(self._file, 1, self.size - 1) != b"\n":  # a last line whose writer was killed
            self._waiting += b"\n"

    def write(self, line: str) -> None:
        """Adds a line, which `flush` writes to the page cache. A written line survives kill -9, but not always a power
        failure."""
        self._waiting += line.encode("utf-8", "surrogateescape") + b"\n"

    def flush(self) -> bool:
        """Writes all waiting lines to the file. Returns False if the disk is full. The next `flush` writes the
        remaining lines."""
        try:
            while self._waiting:
                written = os.write(self._file, self._waiting)
                del self._waiting[:written]
                self.size += written
        except OSError as error:
            self._complain(f"{self.path}: {error.strerror}. Make room there: until then no job starts.")
            return False
        self._complained = False
        return True

    def _complain(self, text: str) -> None:
        if not self._complained:
            self._complained = True
            try:
                print(text, file=sys.stderr, flush=True)
            except OSError:
                pass  # stderr is a log on the same full disk

    def close(self) -> None:
        self.flush()
        os.close(self._file)
