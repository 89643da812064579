"""resumes(): the checkpoint that each attempt read when it began, by the kernel's file events."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rehearse.observe.file_use import FileUse, is_best, series_of
from clusterdp.rehearse.run_spec import Hit


@dataclass(frozen=True)
class Resume:
    """The resume of an attempt other than the first attempt."""

    number: int  # the attempt's
    read: tuple[str, ...]  # checkpoints of earlier attempts that the attempt read, without best models
    newer: str = ""  # the newest whole checkpoint of the same series, if the attempt did not read it


def resumes(history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse]) -> list[Resume]:
    """Returns the resume of each attempt after the first attempt.

    `usual`: the files of an undisturbed run. Files that the undisturbed run renames are not checkpoints to resume from.
    """
    kinds = kinds_to_resume_from(usual)
    found = []
    for before, attempt in itertools.pairwise(history.attempts):
        if attempt.started is not None and before.started is not None:
            found.append(_resume(attempt, attempt.started, files, kinds))
    return found


def kinds_to_resume_from(usual: Mapping[str, FileUse]) -> set[str]:
    """Returns the series of files that an undisturbed run leaves at its end. If it leaves no files, returns the series
    of all files that the run wrote."""
    left = {series_of(path) for path, use in usual.items() if use.whole_at(math.inf) is not None}
    return left or {series_of(path) for path, use in usual.items() if use.written or use.named}


def unread_save(
    history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse], hit: Hit
) -> tuple[str, Resume] | None:
    """Returns a file that an attempt saved after its warning, and the Resume of the next attempt, if that read another
    file.

    `usual`: see resumes(). Temporary files that were not renamed in time do not count, because they could not be
    read.
    """
    passing = {series_of(path) for path, use in usual.items() if use.gone} - kinds_to_resume_from(usual)
    for before, after in itertools.pairwise(history.attempts):
        if before.name != hit.attempt or after.started is None:
            continue
        found = _resume(after, after.started, files, set())
        kept = [path for path in files if series_of(path) not in passing and not is_best(path)]
        saved = [path for path in kept if (files[path].whole_at(after.started) or 0.0) > hit.at]
        if saved and found.read and not set(saved) & set(found.read):
            return saved[-1], found
    return None


def _resume(attempt: AttemptHistory, began: float, files: Mapping[str, FileUse], kinds: set[str]) -> Resume:
    ended = attempt.ended or float("inf")
    paths = [path for path in files if not is_best(path)]
    # When the attempt first saved. Temporary files do not count: Python's tempfile tests the folder with a random name.
    stay = [path for path in paths if series_of(path) in kinds or files[path].whole_at(math.inf) is not None]
    wrote = min((at for path in stay for at in (*files[path].written, *files[path].named) if began < at), default=ended)
    read = [path for path in paths if any(began <= at <= wrote for at in files[path].read)]
    # Leaves out data files, and files that the attempt itself wrote and read. (The first file in a new folder may exist
    # before the folder is watched: files of a known series therefore count.)
    read = [path for path in read if files[path].whole_at(began) is not None or series_of(path) in kinds]
    kept = [path for path in paths if series_of(path) in kinds]
    whole = {path: at for path in kept if (at := files[path].whole_at(began)) is not None}
    if not read:
        return Resume(attempt.number, (), max(whole, key=lambda path: whole[path], default=""))
    kin = [path for path in whole if series_of(path) in {series_of(each) for each in read}]
    newest = max(kin, key=lambda path: whole[path], default="")
    # A file that an interrupted save wrote may be newer than all files that are known to be whole.
    is_older = any(path in whole for path in read) and newest not in read
    return Resume(attempt.number, tuple(read), newest if is_older else "")
