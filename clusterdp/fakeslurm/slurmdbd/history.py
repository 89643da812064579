"""history.jsonl: the events of a cluster, one line each, for people and tests to read.

Each line has a time (of the cluster's clock, in seconds since 1970) and an event: `state` for a change of a job's
state, or the name of the FakeCluster method that broke something on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterdp.fakeslurm.core.model import JobRecord, Model
from clusterdp.fakeslurm.slurmdbd.append_file import AppendFile
from clusterdp.slurm.hostlist import compress


class HistoryFile:
    """Appends to the file; the daemon has one."""

    def __init__(self, path: Path, model: Model, clock: Any):
        self._file = AppendFile(path)
        self._clock = clock
        self._written_states = {
            job.id: _state(job) for job in model.jobs.values()
        }  # as written before the daemon was killed

    def write(self, event: str, **about: object) -> None:
        line = {"time": round(self._clock(), 3), "event": event, **about}
        self._file.write(json.dumps(line))

    def job(self, job: JobRecord) -> None:
        """Write the state of a job if it has changed."""
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
    """The events so far, without a last line that is only half written."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue
