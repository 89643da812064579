"""Recognizes a run folder that was copied or moved after the submit. The job of a copy belongs to the original folder.
Only the run's records are read, because Slurm may have forgotten the job when the user finds the copy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.operate.output.formatting import shown_path
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rundir.names import names_in


def copied_from(history: RunHistory) -> Path | None:
    """Returns the original of a copied folder: the job was submitted from the original, which still has the run's
    records."""
    there = _elsewhere(history)
    return there if there is not None and _has_the_job(there, history.job) else None


def moved_from(history: RunHistory) -> Path | None:
    """Returns the path that the run folder had at the submit, if this path does not exist any more."""
    there = _elsewhere(history)
    return there if there is not None and not there.exists() else None


def refuse_copy(history: RunHistory, element: bool = False) -> None:
    """Raises RunError if the run folder is a copy, because its jobs belong to another folder. With `element`, the
    message names the sweep's folder."""
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
