"""A run folder that lies elsewhere than where its job was submitted: a copy, whose job is another folder's, or one that
was moved. By the records alone, as a copy outlives what Slurm knows of the job."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.names import names_in


def copied_from(history: RunHistory) -> Path | None:
    """The folder of which this one is a copy: its job was submitted there, and it has that record still."""
    there = _elsewhere(history)
    return there if there is not None and _has_the_job(there, history.job) else None


def moved_from(history: RunHistory) -> Path | None:
    """The folder's path when its job was submitted, if nothing is there any more."""
    there = _elsewhere(history)
    return there if there is not None and not there.exists() else None


def refuse_copy(history: RunHistory, element: bool = False) -> None:
    """RunError if it is a copy: its jobs are not for it to end. element: one of a sweep, which is named instead."""
    if (first := copied_from(history)) is not None:
        here, first = (path.parent if element else path for path in (history.run.path, first))
        raise RunError(
            f"{shown_path(here)}: is a copy of {shown_path(first)}, and job {history.job} is that one's. "
            f"Name {shown_path(first)}; `rm -r {shown_path(here)}` removes the copy."
        )


def _elsewhere(history: RunHistory) -> Path | None:
    if not history.folder or history.folder == str(history.run.path):
        return None
    with suppress(OSError):
        if os.path.samefile(history.folder, history.run.path):
            return None
    return Path(history.folder)


def _has_the_job(folder: Path, job: str | None) -> bool:
    names = [*names_in(folder / "events"), *names_in(folder / "attempts")]
    return any(name.removeprefix("submit-").startswith((f"{job}-", f"{job}.")) for name in names)
