"""Retention: the choice of checkpoints to delete, and their deletion. Torch-free.

No rule ever deletes the newest good checkpoint, files that another manifest uses, or a pinned checkpoint. A manifest is
deleted before its files, so that every checkpoint with a manifest is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from clusterdp.checkpoint.errors import ClaimLost
from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.manifest import CheckpointInfo
from clusterdp.storage import Storage

LEFTOVER_AGE_S = 3600.0  # seconds that a save may take before its manifest exists, in a job that has no claims
_log = logging.getLogger("clusterdp.checkpoint")


def to_delete(
    commits: Sequence[CheckpointInfo],
    keep_last: int,
    keep_every: int | None = None,
    *,
    bad: Collection[str] = (),
    unsure: Collection[str] = (),
    pinned: Collection[str] = (),
) -> list[CheckpointInfo]:
    """Returns the checkpoints that may be deleted, oldest first.

    Kept are the newest `keep_last` good checkpoints; the newest good checkpoint of each phase, because a run continues
    from it; and good checkpoints whose `order` is a multiple of `keep_every`. `bad`: tokens of damaged checkpoints,
    which are deleted when `keep_last` good checkpoints are newer. `unsure`: tokens of checkpoints that cannot be read
    at the moment, which are kept, but do not count as good. `pinned`: tokens of checkpoints that are kept.
    """
    commits = sorted(commits, key=lambda info: info.age)
    good = [info for info in commits if info.token not in bad and info.token not in unsure]
    if len(good) <= keep_last:
        return []
    last = good[-keep_last:]
    kept = {info.token for info in last} | set(unsure) | set(pinned)
    kept |= set({info.phase: info.token for info in good}.values())
    if keep_every:
        kept |= {info.token for info in good if info.order % keep_every == 0}
    return [info for info in commits if info.token not in kept and info.age < last[0].age]


def delete(storage: Storage, info: CheckpointInfo, others: Collection[CheckpointInfo]) -> None:
    """Removes a checkpoint. The data files stay if one of `others` has committed them again, or if the folder has a
    manifest that is not in `others`, because a manifest that cannot be read at the moment may use the files."""
    storage.remove(info.name)
    storage.sync_folder(info.folder)  # after a power cut, the manifest must not come back without its files
    names = storage.list(info.folder)
    if info.data not in {other.data for other in others} and not _unread(info.folder, names, others):
        for name in names:
            if layout.token_of_file(name) == info.data:
                storage.remove(f"{info.folder}/{name}")
    storage.remove_folder(info.folder)


def _unread(folder: str, names: Iterable[str], commits: Iterable[CheckpointInfo]) -> bool:
    """Returns whether one of the manifests in this folder is not among the commits."""
    known = {info.name for info in commits}
    return any(layout.token_of_manifest(name) and f"{folder}/{name}" not in known for name in names)


def prune(
    storage: Storage, commits: Sequence[CheckpointInfo], victims: Sequence[CheckpointInfo], may: Callable[[], bool]
) -> None:
    """Deletes the victims. `may` is called before each deletion; if it returns False, ClaimLost is raised. A checkpoint
    that cannot be deleted is logged, and stays."""
    remaining = list(commits)
    for info in victims:
        if not may():
            raise ClaimLost(f"{storage.url}: another attempt owns these checkpoints now. This one deletes nothing.")
        remaining.remove(info)
        try:
            delete(storage, info, remaining)
        except OSError as error:
            _log.warning("%s: could not be deleted: %s. It takes space until a later save can.", info.name, error)


def leftovers(
    storage: Storage, commits: Sequence[CheckpointInfo], newest: CheckpointInfo, own_run: str
) -> Iterator[str]:
    """Yields files of saves that were not committed and never will be.

    Such files have no manifest, are not of this attempt (whose tokens begin with `own_run`), and are older than the
    newest commit by LEFTOVER_AGE_S, by the storage's clock. A folder with a manifest that cannot be read is skipped.
    """
    deadline = storage.modified(newest.name) - LEFTOVER_AGE_S
    used = {token for info in commits for token in (info.token, info.data)}
    for folder in storage.list():
        names = storage.list(folder) if layout.step_of(folder) is not None else []
        if _unread(folder, names, commits):
            continue
        for name in names:
            token = layout.token_of_file(name)
            if token is None or token in used or token.startswith(own_run):
                continue
            if storage.modified(f"{folder}/{name}") < deadline:
                yield f"{folder}/{name}"


def clean(storage: Storage, commits: Sequence[CheckpointInfo], newest: CheckpointInfo, own_run: str) -> None:
    try:
        for name in list(leftovers(storage, commits, newest, own_run)):
            storage.remove(name)
            storage.remove_folder(name.partition("/")[0])
        storage.drop_unfinished(lambda name: _is_others(name, own_run), storage.modified(newest.name) - LEFTOVER_AGE_S)
    except OSError as error:
        _log.warning("%s: files of an unfinished save could not be deleted: %s.", storage.url, error)


def _is_others(name: str, own_run: str) -> bool:
    folder, _, file = name.partition("/")
    token = layout.token_of_file(file)
    return layout.step_of(folder) is not None and token is not None and not token.startswith(own_run)
