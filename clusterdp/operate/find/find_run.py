"""find_run(): finds the run that the user names by a folder or a job id. By default, the latest run of the current
folder is found. A run of `clusterdp profile` never counts as the latest run.

Runs that `submit` has noted (run_index.py) are found in any folder. Every other run is found only in `runs/` of the
current folder.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.operate.find.run_index import index_path, noted_as, noted_runs
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, SweepDir, is_sweep
from clusterdp.rundir.lenient_reads import modified
from clusterdp.rundir.names import names_in
from clusterdp.slurm.jobid import is_job_id

RUNS = Path("runs")  # runs/ of the current folder
REMOVING = ".removing"  # `clusterdp rm` renames runs/NAME to runs/.NAME.removing before it removes the first file


def find_run(word: str | os.PathLike[str] | None = None) -> RunDir:
    """Returns the run that `word` names. Raises RunError if no such run exists; the message names the searched
    places."""
    if word is None:
        return _latest()
    path = Path(word).expanduser()
    if path.is_dir():
        _check_access(path)
        if is_run(path):
            return RunDir(path.absolute())
        if whole := whole_name(path):
            raise RunError(f"{word}: is left of a run that was removed. `clusterdp rm {whole}` removes it, too.")
        raise RunError(
            f"{word}: not a run folder, because it has no config.yaml and no events. Name the run's own folder."
        )
    name = os.fspath(word)
    if is_job_id(name):
        return _with_job(name)
    if name and os.path.isdir(RUNS / name):
        _check_access(RUNS / name)
    if is_run(RUNS / name):
        return RunDir((RUNS / name).absolute())
    raise RunError(f"{name}: no such run folder, nor one of that name in {RUNS}/. {_offer(name)}")


def _check_access(path: Path) -> None:
    if not os.access(path, os.R_OK | os.X_OK):
        raise RunError(f"{path}: you may not read this folder. Ask its owner to let you.")


def known_runs() -> Iterator[Path]:
    """Yields the existing run folders, the last submitted first. Each folder's existence is checked just before the
    folder is yielded."""
    noted = list(noted_runs())
    times = {each.path: each.time for each in noted}
    for path in _folders():
        times[str(path)] = max(times.get(str(path), 0.0), _made(path))
    for name in sorted(times, key=lambda name: times[name], reverse=True):
        if is_run(path := Path(name)):
            yield path


def _latest() -> RunDir:
    """Returns the latest run that lies below the current folder or was submitted from there, else the latest run of a
    parent folder, which is printed, because the user may not expect it. The whole of `runs/` is read only if the index
    has no run of the current folder."""
    here, above, elsewhere = os.getcwd(), None, None
    for noted in noted_runs():
        path, is_here = Path(noted.path), noted.is_of(here)
        is_above = above is None and noted.is_of_above(here)
        if (is_here or is_above or elsewhere is None) and is_run(path) and not _is_profile(path):
            if is_here:
                return RunDir(path)
            above, elsewhere = path if is_above else above, elsewhere or path
    if folders := _folders():
        newest = sorted(folders, key=_made, reverse=True)
        return RunDir(next((path for path in newest if not _is_profile(path)), newest[0]))
    if elsewhere is None:
        looked = f"{RUNS.absolute()} nor in {index_path()}"
        raise RunError(f"RUN: none yet, neither in {looked}. Submit one, or name a run folder or a job id.")
    if above is None:
        raise RunError(f"RUN: there is none of this folder; the latest elsewhere is {elsewhere}. Name it, or a job id.")
    print(f"clusterdp: no run in this folder; the latest elsewhere is {above}", file=sys.stderr)
    return RunDir(above)


def _with_job(job: str) -> RunDir:
    """Returns the last submitted run that has the job id: ids repeat, because Slurm wraps them, and each fake cluster
    counts by itself. All folders are searched only if the index lacks the job, because a batch script or a user
    resubmitted the run."""
    for path in noted_as(job.partition("_")[0]):
        if is_run(path) and (found := _of_job(path, job)):
            return found
    count = 0
    for path in known_runs():
        if found := _of_job(path, job):
            return found
        count += 1
    raise RunError(f"{job}: no run of that job among {count} known ones. Name the run's folder. {_offer()}")


def _of_job(path: Path, job: str) -> RunDir | None:
    """Returns the run at `path` if the run has the job; for a sweep, the element that has the job."""
    if any(_has_job(path / folder, job) for folder in ("attempts", "events")):
        return RunDir(path)
    return _element_with(SweepDir(path), job) if is_sweep(path) else None


def _element_with(sweep: SweepDir, job: str) -> RunDir | None:
    """Returns the element that has the job: `7_3` of the sweep's array, or a job of a later resume."""
    runs = map(sweep.element, sweep.numbers())
    return next((run for run in runs if _has_job(run.events, job) or _has_job(run.path / "attempts", job)), None)


def _has_job(folder: Path, job: str) -> bool:
    """Returns whether a file name contains the job id: attempts/123.0, events/123.0-batch.jsonl,
    events/submit-123-submit.jsonl."""
    pattern = re.compile(rf"(submit-)?{job}[.-].*")
    return any(map(pattern.fullmatch, names_in(folder)))


def _folders() -> list[Path]:
    if not RUNS.is_dir():
        return []
    return [path.absolute() for path in RUNS.iterdir() if is_run(path)]


def is_run(path: Path) -> bool:
    """Returns whether the folder is a run; a half-written run counts, too. Not runs: an unreadable folder, and a folder
    that an interrupted `clusterdp rm` left."""
    names = ("config.yaml", "events", "attempts")
    return whole_name(path) is None and any(os.path.exists(path / name) for name in names)  # Path.exists may raise


def whole_name(path: Path) -> Path | None:
    """Returns the run's former path if `path` is the folder that an interrupted `clusterdp rm` left, else None."""
    hidden = path.name.startswith(".") and path.name.endswith(REMOVING)
    return path.with_name(path.name[1 : -len(REMOVING)]) if hidden and len(path.name) > 1 + len(REMOVING) else None


def _is_profile(path: Path) -> bool:
    """Returns whether the folder is a run of `clusterdp profile`. The pattern matches only YAML as submit writes it."""
    try:
        text = read_plain(path / "config.yaml").decode()
        return bool(re.search(r"^profile:\n(?:  .*\n)*?  steps: \d", text, re.MULTILINE))
    except (OSError, ValueError):
        return False


def _made(path: Path) -> float:
    return modified(path / "config.yaml") or modified(path / "sweep.json") or modified(path) or 0.0


def _offer(begin: str = "") -> str:
    """Returns a hint for an error message: the run whose name starts with `begin`, if exactly one name does so, else
    the latest run."""
    meant = [path.name for path in _folders() if begin and path.name.startswith(begin)]
    if len(meant) == 1:
        return f"Did you mean {meant[0]}?"
    latest = next(known_runs(), None)
    return f"The latest is {latest}." if latest else "There is none yet."
