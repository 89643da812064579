"""Which run the user means: a folder, a job id, or, without a word, the latest run of the current folder. Runs of
`clusterdp profile` are never the latest.

Runs lie in `runs/`, or anywhere else that `run_dir=` names. So `submit` notes each run in a small file of the user's.
The file is a convenience: a run in it may be gone, and a run that is not in it is found by its folder.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from clusterdp.errors import RunError
from clusterdp.plainfile import read_plain
from clusterdp.rundir import RunDir, append_line, read_lines, write_durably
from clusterdp.rundir.lenient_reads import modified, time_of
from clusterdp.rundir.names import names_in
from clusterdp.slurm.jobid import is_job_id

RUNS = Path("runs")  # of the current folder
KEEP = 500  # runs; a job id is looked for in all of them


def find_run(word: str | os.PathLike[str] | None = None) -> RunDir:
    """RunError if there is no such run; it names what was looked at."""
    if word is None:
        return _latest()
    path = Path(word).expanduser()
    if path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise RunError(f"{word}: you may not read this folder. Ask its owner to let you.")
        if _is_run(path):
            return RunDir(path.absolute())
        raise RunError(f"{word}: not a run folder, for it has no config.yaml and no events. Name the run's own folder.")
    name = os.fspath(word)
    if is_job_id(name):
        return _with_job(name)
    if _is_run(RUNS / name):
        return RunDir((RUNS / name).absolute())
    raise RunError(f"{name}: no such run folder, nor one of that name in {RUNS}/. {_offer()}")


def remember(run: RunDir) -> None:
    """Note a run that was submitted. It is no error if the file cannot be written (no home, no quota)."""
    try:
        record = {"time": time.time(), "run": str(run.path.absolute()), "dir": os.getcwd()}
        path = index_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _prune(path)
        append_line(path, record, mode=0o600)
    except OSError:
        pass


def index_path() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():  # as the XDG rules have it
        base = Path("~/.local/state").expanduser()
    return base / "clusterdp" / "runs"


def known_runs() -> list[Path]:
    """The run folders that exist, the last submitted first."""
    times = {path: when for path, when, _ in _remembered() if _is_run(path)}
    for path in _folders():
        times[path] = max(times.get(path, 0.0), _made(path))
    return sorted(times, key=lambda path: times[path], reverse=True)


def _latest() -> RunDir:
    """The latest of the runs that lie below this folder or were submitted from it. Else the latest of all; its name is
    printed, for the user may mean another. All of `runs/` is read only if no run is noted."""
    here, elsewhere = Path.cwd(), None
    for path, _, submit_dir in reversed(_remembered()):
        is_here = submit_dir == str(here) or here in path.parents or path in (here, *here.parents)
        if (is_here or elsewhere is None) and _is_run(path) and not _is_profile(path):
            if is_here:
                return RunDir(path)
            elsewhere = path
    if folders := _folders():
        newest = sorted(folders, key=_made, reverse=True)
        return RunDir(next((path for path in newest if not _is_profile(path)), newest[0]))
    if elsewhere is None:
        looked = f"{RUNS.absolute()} nor in {index_path()}"
        raise RunError(f"RUN: none yet, neither in {looked}. Submit one, or name a run folder or a job id.")
    print(f"clusterdp: no run in this folder; the latest elsewhere is {elsewhere}", file=sys.stderr)
    return RunDir(elsewhere)


def _with_job(job: str) -> RunDir:
    """Job ids repeat (Slurm wraps them, each fake cluster begins anew): the run submitted last is meant."""
    known = known_runs()
    for path in known:
        if any(_has_job(path / folder, job) for folder in ("attempts", "events")):
            return RunDir(path)
    raise RunError(f"{job}: no run of that job among {len(known)} known ones. Name the run's folder. {_offer()}")


def _has_job(folder: Path, job: str) -> bool:
    """By names alone: `attempts/123.0`, `events/123.0-batch.jsonl`, `events/submit-123-submit.jsonl`."""
    pattern = re.compile(rf"(submit-)?{job}[.-].*")
    return any(map(pattern.fullmatch, names_in(folder)))


def _remembered() -> list[tuple[Path, float, object]]:
    """(run, when and from which folder it was submitted), in that order; lines that are torn are left out."""
    runs = []
    for record in read_lines(index_path()):
        path = record.get("run")
        if isinstance(path, str) and "\0" not in path:
            runs.append((Path(path), time_of(record), record.get("dir")))
    return runs


def _prune(path: Path) -> None:
    try:
        lines = read_plain(path).splitlines(keepends=True)
    except FileNotFoundError:
        return
    if len(lines) >= 2 * KEEP:
        write_durably(path, b"".join(lines[-KEEP:]), mode=0o600)


def _folders() -> list[Path]:
    if not RUNS.is_dir():
        return []
    return [path.absolute() for path in RUNS.iterdir() if _is_run(path)]


def _is_run(path: Path) -> bool:
    return any((path / name).exists() for name in ("config.yaml", "events", "attempts"))


def _is_profile(path: Path) -> bool:
    """Whether it is a run of `clusterdp profile`, which must be named. Its config is as submit writes it."""
    try:
        text = read_plain(path / "config.yaml").decode()
        return bool(re.search(r"^profile:\n(?:  .*\n)*?  steps: \d", text, re.MULTILINE))
    except (OSError, ValueError):
        return False


def _made(path: Path) -> float:
    return modified(path / "config.yaml") or modified(path) or 0.0


def _offer() -> str:
    known = known_runs()
    return f"The latest is {known[0]}." if known else "There is none yet."
