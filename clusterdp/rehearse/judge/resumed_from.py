"""Which checkpoint an attempt has read when it began, by the kernel's account of the files."""

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
    """The resume of an attempt after the first. read: the checkpoints that it read, of those that an attempt before it
    has made, without one that is kept for its score. newer: the newest of the same kind that was whole when it began,
    and that it has not read."""

    number: int
    read: tuple[str, ...]
    newer: str = ""


def resumes(history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse]) -> list[Resume]:
    """usual: the files of an undisturbed run. Those that it renames are none to resume from."""
    kinds = kinds_to_resume_from(usual)
    found = []
    for before, attempt in itertools.pairwise(history.attempts):
        if attempt.started is not None and before.started is not None:
            found.append(_resume(attempt, attempt.started, files, kinds))
    return found


def kinds_to_resume_from(usual: Mapping[str, FileUse]) -> set[str]:
    """Series of files that an undisturbed run leaves at its end; if it removes all, of those that it made."""
    left = {series_of(path) for path, use in usual.items() if use.whole_at(math.inf) is not None}
    return left or {series_of(path) for path, use in usual.items() if use.written or use.named}


def unread_save(
    history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse], hit: Hit
) -> tuple[str, Resume] | None:
    """A file that an attempt has written whole between its warning and its end, and the attempt after it, which has
    read another one. usual: as above: a file that was only not renamed in time is none that could be read."""
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
    # Its first save. Python's tempfile writes a file of some letters before that, and deletes it.
    stay = [path for path in paths if series_of(path) in kinds or files[path].whole_at(math.inf) is not None]
    wrote = min((at for path in stay for at in (*files[path].written, *files[path].named) if began < at), default=ended)
    read = [path for path in paths if any(began <= at <= wrote for at in files[path].read)]
    # No data, nor what it has read back. (The first file in a new folder is there before that can be listened to.)
    read = [path for path in read if files[path].whole_at(began) is not None or series_of(path) in kinds]
    kept = [path for path in paths if series_of(path) in kinds]
    whole = {path: at for path in kept if (at := files[path].whole_at(began)) is not None}
    if not read:
        return Resume(attempt.number, (), max(whole, key=lambda path: whole[path], default=""))
    kin = [path for path in whole if series_of(path) in {series_of(each) for each in read}]
    newest = max(kin, key=lambda path: whole[path], default="")
    # A file of a save that was struck may be newer than all that are known to be whole.
    is_older = any(path in whole for path in read) and newest not in read
    return Resume(attempt.number, tuple(read), newest if is_older else "")
