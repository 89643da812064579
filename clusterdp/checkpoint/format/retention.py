"""Retention: which checkpoints are deleted, and how. Torch-free.

No rule here ever deletes the newest good checkpoint, one that another manifest still uses, or one that is pinned. A
manifest is deleted before its files, so that whatever has a manifest is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from clusterdp.checkpoint.errors import ClaimLost
from clusterdp.checkpoint.format import layout
from clusterdp.checkpoint.format.manifest import CheckpointInfo
from clusterdp.storage import Storage

LEFTOVER_AGE_S = 3600.0  # a save without a manifest may be at work for so long, in a job that knows of no claims
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
    """The checkpoints that may be deleted, oldest first.

    Kept are the newest `keep_last` good ones, the newest good one of each phase, which is where a run takes up what
    that phase came to, and the good ones whose order of commit is a multiple of `keep_every`.
    `bad` tokens (proved damaged) count for nothing, and go when `keep_last` good ones are newer. `unsure` ones (could
    not be read just now) count for nothing and stay, as do those `pinned`.
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
    """Remove a checkpoint, but not files that one of `others` has committed anew, or that a manifest beside it may use
    which cannot be read just now and so is not among them."""
    storage.remove(info.name)
    storage.sync_folder(info.folder)  # after a power cut, the manifest must not come back without its files
    names = storage.list(info.folder)
    if info.data not in {other.data for other in others} and not _unread(info.folder, names, others):
        for name in names:
            if layout.token_of_file(name) == info.data:
                storage.remove(f"{info.folder}/{name}")
    storage.remove_folder(info.folder)


def _unread(folder: str, names: Iterable[str], commits: Iterable[CheckpointInfo]) -> bool:
    """Whether one of the manifests in this folder is not among the commits."""
    known = {info.name for info in commits}
    return any(layout.token_of_manifest(name) and f"{folder}/{name}" not in known for name in names)


def prune(
    storage: Storage, commits: Sequence[CheckpointInfo], victims: Sequence[CheckpointInfo], may: Callable[[], bool]
) -> None:
    """Delete the victims. `may` is asked before each; if it says no, raises ClaimLost. A file that cannot be deleted is
    logged, and stays."""
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
    """Files of saves that were never committed and never will be.

    They have no manifest, are not ours (`own_run` is how our tokens begin), and are older than the newest commit by
    LEFTOVER_AGE_S, by the storage's own clock. A folder with a manifest that cannot be read is left alone.
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
