"""LastRun: the newest run of the same name that has checkpoints, for the size of one and the time that a save takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterdp.errors import ClusterdpError
from clusterdp.operate.find.run_index import noted_runs
from clusterdp.rundir import RunDir, read_events

MOST_NOTED, MOST = 2000, 20  # runs that are asked for their names, and that are looked at


@dataclass(frozen=True)
class LastRun:
    """`bytes`: of its largest checkpoint. `save_s`: how long its slowest save took; None if it is not on record."""

    path: Path
    bytes: int
    save_s: float | None


def last_run(name: str, submit_dir: Path) -> LastRun | None:
    """Of the runs that were submitted from this folder. Stores are not asked."""
    return next(filter(None, map(_look, itertools.islice(_runs(name, submit_dir), MOST))), None)


def _runs(name: str, submit_dir: Path) -> Iterator[Path]:
    for noted in itertools.islice(noted_runs(), MOST_NOTED):
        path = Path(noted.path)
        if noted.submit_dir == str(submit_dir) and (path.name == name or path.name.startswith(f"{name}-")):
            yield path


def _look(path: Path) -> LastRun | None:
    run = RunDir(path)
    saves = [event for event in read_events(run) if event.get("event") == "saved"]
    sizes = [event["bytes"] for event in saves if isinstance(event.get("bytes"), int)]
    if not sizes:
        from clusterdp.checkpoint.format.manifest import list_checkpoints  # 20 ms

        try:
            sizes = [info.bytes for info in list_checkpoints(run.checkpoints)]
        except (OSError, ClusterdpError):
            return None
    times = [float(event["seconds"]) for event in saves if isinstance(event.get("seconds"), (int, float))]
    return LastRun(path, max(sizes), max(times, default=None)) if sizes else None
