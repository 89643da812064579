"""In which order the attempts of a run began."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from clusterdp.rundir import RunDir
from clusterdp.rundir.lenient_reads import Record, modified, time_of
from clusterdp.slurm.jobid import JOB_ID

ATTEMPT = re.compile(rf"({JOB_ID})\.([0-9]{{1,9}})")  # job, or element of an array, and restart count


def by_beginning(run: RunDir, events: Mapping[str, Sequence[Record]]) -> list[str]:
    """The names in `events`, which holds the events that each attempt has written itself.

    Within a job the restart count decides, whatever the clocks of its hosts say. Between jobs it is the time (ids grow,
    but Slurm wraps them): of the first event, or of the attempt beside it that has one. Only a job without any event
    goes by the time of its folders, which is that of the copy if somebody has copied the run.
    """
    jobs: dict[str, list[tuple[int, str]]] = {}
    for name in events:
        job, restart = _parts(name)
        jobs.setdefault(job, []).append((restart, name))
    keys: dict[str, tuple[float, str, int]] = {}
    for job, lives in jobs.items():
        lives.sort()
        times = [time_of(events[name][0]) if events[name] else None for _, name in lives]
        if not any(times):
            times = [modified(run.attempt(name).path) for _, name in lives]
        latest = next(filter(None, times), 0.0)
        for (restart, name), when in zip(lives, times, strict=True):
            latest = max(latest, when or 0.0)
            keys[name] = (latest, job, restart)
    return sorted(keys, key=lambda name: keys[name])


def _parts(name: str) -> tuple[str, int]:
    found = ATTEMPT.fullmatch(name)
    assert found is not None, name
    return found[1], int(found[2])
