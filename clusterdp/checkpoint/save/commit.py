"""Committer: what rank 0 alone does once all ranks have written. It creates the manifest and applies retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from clusterdp.checkpoint.errors import ClaimLost, not_saved
from clusterdp.checkpoint.format import retention
from clusterdp.checkpoint.format.layout import manifest_name, token_of_file
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest, scan
from clusterdp.checkpoint.format.phase import Phase
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.errors import DamagedError
from clusterdp.storage import Storage

_log = logging.getLogger("clusterdp.checkpoint")


@dataclass
class Committer:
    storage: Storage
    attempt: str
    may_commit: Callable[[], bool]
    keep_last: int
    keep_every: int | None
    phase: Phase = field(default_factory=Phase)  # whose state is saved and restored
    last_order: int = -1  # the order of what this attempt has restored or committed last
    bad: set[str] = field(default_factory=set)  # tokens proved damaged by this attempt
    unsure: set[str] = field(default_factory=set)  # tokens that this attempt could not read
    pinned: set[str] = field(default_factory=set)  # what it restored from, until there is proof of a newer one
    _known: dict[str, CheckpointInfo] = field(default_factory=dict)
    _order: int = 0  # of the last commit, as far as anybody can know
    _cleaned: bool = False

    def _commits(self) -> list[CheckpointInfo]:
        first = not self._known
        commits, unread = scan(self.storage, self._known)
        self._order = max((self._order, *(info.order for info in commits)))  # never less: a commit may have failed
        if unread and first:
            # Unreadable commits may be newer than all that can be read just now, and come back. No number of commits
            # gets ahead of this clock; a fixed leap would meet that of an attempt which could not read others.
            self._order = max(self._order, time.time_ns())
        self._known = {info.name: info for info in commits}
        return commits

    def newest_meta(self) -> Any:
        """The newest commit's meta, as the manifest has it."""
        commits, _ = scan(self.storage)
        with suppress(DamagedError):
            return read_manifest(self.storage, commits[-1]).meta if commits else None
        return None

    def commit(self, manifest: Manifest) -> CheckpointInfo:
        """Create the manifest, as the newest commit. After an error there is none."""
        try:
            return self._commit(manifest)
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{manifest.info.name}", error) from error

    def _commit(self, manifest: Manifest) -> CheckpointInfo:
        self._commits()
        info = replace(manifest.info, order=self._order + 1, committed_at=time.time(), attempt=self.attempt)
        info = replace(info, phase=self.phase.name)
        manifest = replace(manifest, info=info)
        data = manifest.encode()
        if not self.may_commit():
            raise ClaimLost(f"{info.name}: another attempt owns these checkpoints now. This one commits nothing.")
        self._order = info.order  # the next is newer also if this one cannot be read then
        try:
            self.storage.publish(info.name, data)
            if self.pinned:
                self.storage.forget(info.name)
                if read_manifest(self.storage, info).encode() != data:
                    raise DamagedError(f"{info.name}: it reads back as another manifest. Check the file system.")
        except BaseException:
            # It may be in place already, and only its durability in doubt. All ranks are about to learn that it failed.
            with suppress(OSError):
                self.storage.remove(info.name)
                self.storage.sync_folder(info.folder)  # nor may it come back, after a power cut, without its files
            raise
        self.last_order = info.order
        return info

    def discard(self, info: CheckpointInfo) -> None:
        """Delete all ranks' files of a save that could not be committed."""
        with suppress(OSError):
            names = self.storage.list(info.folder)
            if manifest_name(info.token) in names:
                return  # it could not be taken back: a checkpoint after all, and a good one if it keeps its files
            for name in names:
                if token_of_file(name) == info.data:
                    with suppress(OSError):
                        self.storage.remove(f"{info.folder}/{name}")
            self.storage.remove_folder(info.folder)

    def tidy(self, newest: CheckpointInfo, *, proved: bool) -> None:
        """Delete what retention no longer keeps. `proved`: all of the newest has been read back."""
        if proved:
            self.pinned.clear()
        try:
            commits = self._commits()
        except OSError as error:
            _log.warning("%s: cannot be listed: %s. Old checkpoints stay for now.", self.storage.url, error)
            return
        victims = retention.to_delete(
            commits, self.keep_last, self.keep_every, bad=self.bad, unsure=self.unsure, pinned=self.pinned
        )
        try:
            retention.prune(self.storage, commits, victims, self.may_commit)
            cleans = not self._cleaned and self.may_commit()
        except OSError as error:  # what is newest stands all the same
            _log.warning(
                "%s: it is not known which attempt may delete: %s. Old checkpoints stay for now.",
                self.storage.url,
                error,
            )
            return
        if cleans:
            self._cleaned = True
            gone = {info.name for info in victims}
            remaining = [info for info in commits if info.name not in gone]
            retention.clean(self.storage, remaining, newest, newest.token.partition("-")[0])
