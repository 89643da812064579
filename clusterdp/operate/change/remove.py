"""`clusterdp rm`: removes the folder of a run that is over, with all its files.

The folder is renamed first (runs/NAME to runs/.NAME.removing): from then on, no command and no job finds the run. After
an interruption, the remaining files are not mistaken for a run. A second `clusterdp rm runs/NAME` removes the remaining
files.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from clusterdp.errors import RunError, SlurmError
from clusterdp.operate.find.find_run import REMOVING, RUNS, find_run, is_run, whole_name
from clusterdp.operate.output.formatting import Colour, shown_path
from clusterdp.operate.queue.moved_folder import refuse_copy
from clusterdp.operate.queue.predecessor import followers
from clusterdp.operate.queue.run_cluster import commands_of, is_gone, is_here
from clusterdp.operate.queue.run_status import ask_for_all_jobs, current_status, live_jobs
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.record.run_state import RunState
from clusterdp.rundir import RunDir, SweepDir, is_sweep, sweep_of
from clusterdp.rundir.names import names_in
from clusterdp.wording import counted, size


@dataclass(frozen=True)
class Removal:
    """The plan of a removal, which the user confirms first."""

    run: RunDir
    nbytes: int  # freed bytes
    stays: str = ""  # place of the checkpoints, if outside the run folder: they stay
    rest: bool = False  # True if an earlier removal was interrupted, and only its remaining files are removed


def plan_removal(word: str) -> Removal:
    """Returns the plan of a removal. Raises RunError or SlurmError if the run does not exist, or is not known to be
    over."""
    if path := _rest_of(word):
        return Removal(RunDir(path), _bytes_in(_aside(path)), rest=True)
    run = find_run(word)
    _check_place(run)
    check_over(run)
    return Removal(run, _bytes_in(run.path), _checkpoints_elsewhere(run))


def check_over(run: RunDir) -> None:
    """Raises RunError or SlurmError unless the run, or every element of the sweep, is known to be over."""
    for each in followers(run):
        waiting = read_history(each, all_metrics=False)
        with commands_of(waiting.cluster):
            if not waiting.attempts and not is_sweep(each.path) and not current_status(waiting).state.over:
                here, there = shown_path(run.path), shown_path(each.path)
                end = f"Wait for that, or `clusterdp cancel {there}`; then remove it."
                raise RunError(f"{here}: {there} is to start after it. {end}")
    if is_sweep(run.path):
        from clusterdp.operate.change.end_sweep import check_sweep_over

        check_sweep_over(SweepDir(run.path))
        return
    history = read_history(run)
    path = shown_path(run.path)
    if history.is_local and not history.state.over:
        raise RunError(f"{path}: is not over: it runs without Slurm. Wait for its end, or `clusterdp stop {path}`.")
    if history.is_local and not history.jobs:
        return
    with commands_of(history.cluster):
        try:
            rows = ask_for_all_jobs(history)
        except SlurmError as error:
            raise SlurmError(f"{error} So it is not known whether {path} is over. Try again once it is.") from None
        if (rows is None and not history.closed) or (history.job is None and _is_in_doubt(history)):
            raise RunError(
                f"{path}: was {history.state.value} when last heard of, and no squeue here knows its cluster "
                f"({history.cluster or 'unknown'}). Remove it where it was submitted."
            )
    for job in live_jobs(rows or {}):
        refuse_copy(history)
        state = (rows or {})[job].state
        end = f"scancel {job}" if history.state is RunState.DONE else f"clusterdp cancel {path}"
        raise RunError(f"{path}: is not over, for job {job} is {state}. Wait for its end, or `{end}`; then remove it.")


def show_removals(removals: list[Removal], out: TextIO) -> None:
    colour = Colour(out)
    for each in removals:
        what = "  what an interrupted removal has left" if each.rest else ""
        out.write(f"{colour('yellow', 'goes')}   {shown_path(each.run.path)}  {size(each.nbytes)}{what}\n")
        if each.stays:
            out.write(f"{colour('green', 'stays')}  {each.stays}  its checkpoints\n")
    total = sum(each.nbytes for each in removals)
    out.write(f"{counted(len(removals), 'run')} would go, and free {size(total)}\n")


def remove(run: RunDir) -> None:
    """Removes the run folder, or the files that an interrupted removal left. The caller must hold the run's lock.
    Raises RunError if a file cannot be removed."""
    aside = _aside(run.path)
    try:
        if run.path.exists():
            _remove_all(aside)  # files that remain of an earlier run with this name
            os.rename(run.path, aside)
        _remove_all(aside)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        said = f"{shown_path(run.path)}: {where}{error.strerror}. See who may write there. {what_is_left(run)}"
        raise RunError(said.rstrip()) from None


def what_is_left(run: RunDir) -> str:
    """Returns a message with the command that removes the remaining files of a run; empty if no files remain."""
    path = shown_path(run.path)
    return f"A part of {path} is removed; `clusterdp rm {path}` removes the rest." if _aside(run.path).exists() else ""


def _remove_all(folder: Path) -> None:
    """Removes a folder and its content, if the folder exists. Links are removed, not followed."""
    for _ in range(10):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:  # no such folder, or another process removes it at the same time
            if not folder.exists():
                return


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}{REMOVING}")


def _rest_of(word: str) -> Path | None:
    """Returns the former path of the run, if `word` names a folder that an interrupted removal left."""
    for path in (Path(word).expanduser().absolute(), (RUNS / word).absolute()):
        whole = whole_name(path) or path
        if not os.path.lexists(whole) and _aside(whole).is_dir() and not _aside(whole).is_symlink():
            return whole
    return None


def _check_place(run: RunDir) -> None:
    """Raises RunError for a folder that must not be removed. A folder with a config.yaml may be a run; for a removal,
    it must also have the record of a submit."""
    path, here = run.path, Path.cwd()
    shown = shown_path(path)
    if path.is_symlink():
        raise RunError(f"{shown}: is a link to {os.path.realpath(path)}. Name that folder.")
    if not names_in(run.submits) and not names_in(run.events):
        raise RunError(f"{shown}: has no record of a submit, so it may be none of ours. `rm -r` removes it, too.")
    if Path(os.path.realpath(path)) in (here, *here.parents):
        raise RunError(f"{shown}: you are in it. Go to another folder first.")
    for entry in _entries(path):
        inner = Path(entry.path).parent if entry.name == run.submits.name else path
        if inner != path and is_run(inner) and not (inner.parent == path and sweep_of(RunDir(inner))):
            raise RunError(f"{shown}: another run lies in it, {shown_path(inner)}. Remove that one first.")


def _is_in_doubt(history: RunHistory) -> bool:
    """Returns whether a job may exist that only the run's cluster knows, while that cluster cannot be asked."""
    doubt = any(event.get("event") == "submit-in-doubt" for event in history.events)
    return doubt and not is_here(history.cluster) and not is_gone(history.cluster)


def _checkpoints_elsewhere(run: RunDir) -> str:
    """Returns the place of the checkpoints if outside the run folder: checkpoint.url, or the target if checkpoints/ is
    a link. Else returns ""."""
    from clusterdp.operate.checkpoints.place import url_of

    if run.checkpoints.is_symlink():
        return os.path.realpath(run.checkpoints)
    try:
        url = url_of(SweepDir(run.path).element(0) if is_sweep(run.path) else run)
    except RunError as error:
        return f"what checkpoint.url named, if anything ({error})"
    return "" if os.path.normpath(url).startswith(f"{run.path}/") else url


def _bytes_in(folder: Path) -> int:
    """Returns how many bytes a removal frees. A file with a hard link elsewhere does not count, because removing one
    link frees nothing: runs share unchanged code by hard links."""
    names: Counter[tuple[int, int]] = Counter()
    total = 0
    for entry in _entries(folder):
        try:
            stat = entry.stat(follow_symlinks=False)
        except OSError:  # removed meanwhile
            continue
        names[stat.st_dev, stat.st_ino] += 1
        if entry.is_dir(follow_symlinks=False) or names[stat.st_dev, stat.st_ino] == stat.st_nlink:
            total += 512 * stat.st_blocks
    return total


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path)
