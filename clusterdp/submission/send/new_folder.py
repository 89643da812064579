"""new_folder: makes a folder for a new run or a new sweep, and removes the folder again if nothing was submitted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterdp.errors import ClusterdpError, RunError, SubmitInDoubt
from clusterdp.rundir import RunDir
from clusterdp.submission.send.answers import known_jobs
from clusterdp.submission.send.lock import RunLock


@contextmanager
def new_folder(run: RunDir, named: bool) -> Iterator[RunLock]:
    """Makes and locks the folder. A ClusterdpError in the body of the with statement empties the folder, unless a job
    of the run exists or may exist. At the end, folders that are empty are removed. `named` is True if the user named
    the folder; else the folder is in `runs/`, which gets a .gitignore."""
    if is_a_run(run.path):
        raise _holds_a_run(run)
    missing = [folder for folder in (run.path, *run.path.parents) if not folder.exists()]
    try:
        _make(run, named)
        with RunLock(run) as lock:
            if lock.number != 1:  # another process has submitted a run in this folder before
                raise _holds_a_run(run)
            try:
                yield lock
            except SubmitInDoubt:
                raise
            except ClusterdpError:
                if not known_jobs(run):
                    empty(run)
                raise
    except OSError as error:
        raise RunError(f"run_dir: {run.path}: cannot be written: {error.strerror}. Name another.") from None
    finally:
        _remove_empty(missing)


def make_subfolders(run: RunDir) -> None:
    for folder in (run.events, run.metrics, run.path / "attempts", run.claims, run.checkpoints):
        folder.mkdir()


def is_a_run(path: Path) -> bool:
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _holds_a_run(run: RunDir) -> RunError:
    return RunError(
        f"run_dir: {run.path} holds a run already. `clusterdp resume {run.path}` goes on with it; "
        "for a new one name another folder."
    )


def _make(run: RunDir, named: bool) -> None:
    make_parent(run.path, named)


def make_parent(folder: Path, named: bool) -> None:
    """Makes a folder; if the user did not name this folder, `runs/` is made first, with a .gitignore."""
    if not named:
        with suppress(FileExistsError):
            folder.parent.mkdir(parents=True)
            (folder.parent / ".gitignore").write_text("*\n")
    folder.mkdir(parents=True, exist_ok=True)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Removes the folders that new_folder() made, the innermost first, unless they contain other runs by now."""
    for folder in folders:
        ignore = folder / ".gitignore"
        with suppress(OSError):
            ours_alone = os.listdir(folder) == [ignore.name]
            if ours_alone:
                ignore.unlink()
            try:
                folder.rmdir()
            except OSError:
                if ours_alone:
                    ignore.write_text("*\n")


def empty(run: RunDir) -> None:
    """Removes all files of a run, the lock last, because a folder with any file counts as a run."""
    import shutil

    for entry in run.path.iterdir():
        if entry != run.submits:
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.rmtree(run.submits, ignore_errors=True)
