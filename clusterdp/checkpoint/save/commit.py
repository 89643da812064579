"""Committer: creates the manifest and applies retention, on rank 0, after all ranks have written their files."""

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

TICK_S = 0.001  # least seconds between the times of two commits or copies
_log = logging.getLogger("clusterdp.checkpoint")


@dataclass
class Committer:
    storage: Storage
    attempt: str
    may_commit: Callable[[], bool]
    keep_last: int
    keep_every: int | None
    phase: Phase = field(default_factory=Phase)  # the phase that is saved and restored
    last_order: int = -1  # order of the commit that this attempt restored or committed last
    last_at: float = 0.0  # on rank 0, the latest time of a commit or a copy
    bad: set[str] = field(default_factory=set)  # tokens of checkpoints that this attempt has found to be damaged
    unsure: set[str] = field(default_factory=set)  # tokens of checkpoints that this attempt could not read
    pinned: set[str] = field(default_factory=set)  # token of the restored commit, until a newer commit is read back
    _known: dict[str, CheckpointInfo] = field(default_factory=dict)
    _order: int = 0  # highest `order` of a commit that may exist
    _cleaned: bool = False

    def _commits(self) -> list[CheckpointInfo]:
        first = not self._known
        commits, unread = scan(self.storage, self._known)
        self._order = max((self._order, *(info.order for info in commits)))  # never falls, even after a failed commit
        if unread and first:
            # Unreadable commits may be newer than all readable commits, and become readable again. Therefore the order
            # continues from a clock, which no count of commits exceeds. A fixed jump could equal the jump of another
            # attempt.
            self._order = max(self._order, time.time_ns())
        self._known = {info.name: info for info in commits}
        self.last_at = max((self.last_at, *(info.committed_at for info in commits)))
        return commits

    def next_time(self) -> float:
        """Returns the time of a commit or a copy, later than all before it: a clock may step back, and that of another
        node may be ahead."""
        self.last_at = max(time.time(), self.last_at + TICK_S)
        return self.last_at

    def newest_meta(self) -> Any:
        """Returns the newest commit's meta in the form of the manifest; None if there is no commit, or if its manifest
        is damaged."""
        commits, _ = scan(self.storage)
        with suppress(DamagedError):
            return read_manifest(self.storage, commits[-1]).meta if commits else None
        return None

    def commit(self, manifest: Manifest) -> CheckpointInfo:
        """Creates the manifest, as the newest commit. After an error, the manifest is removed again."""
        try:
            return self._commit(manifest)
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{manifest.info.name}", error) from error

    def _commit(self, manifest: Manifest) -> CheckpointInfo:
        self._commits()
        info = replace(manifest.info, order=self._order + 1, committed_at=self.next_time(), attempt=self.attempt)
        info = replace(info, phase=self.phase.name)
        manifest = replace(manifest, info=info)
        data = manifest.encode()
        if not self.may_commit():
            raise ClaimLost(f"{info.name}: another attempt owns these checkpoints now. This one commits nothing.")
        self._order = info.order  # the next commit is newer, even if this commit cannot be read by then
        try:
            self.storage.publish(info.name, data)
            if self.pinned:
                self.storage.forget(info.name)
                if read_manifest(self.storage, info).encode() != data:
                    raise DamagedError(f"{info.name}: it reads back as another manifest. Check the file system.")
        except BaseException:
            # The manifest may exist, although perhaps not durable. All ranks will raise an error about the failed save.
            with suppress(OSError):
                self.storage.remove(info.name)
                self.storage.sync_folder(info.folder)  # after a power cut, no manifest may come back without files
            raise
        self.last_order = info.order
        return info

    def discard(self, info: CheckpointInfo) -> None:
        """Deletes all ranks' files of a save that could not be committed."""
        with suppress(OSError):
            names = self.storage.list(info.folder)
            if manifest_name(info.token) in names:
                return  # the manifest could not be removed, and together with its files it is a good checkpoint
            for name in names:
                if token_of_file(name) == info.data:
                    with suppress(OSError):
                        self.storage.remove(f"{info.folder}/{name}")
            self.storage.remove_folder(info.folder)

    def tidy(self, newest: CheckpointInfo, *, proved: bool) -> None:
        """Deletes checkpoints that retention does not keep. `proved`: whether the whole newest checkpoint has been read
        back."""
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
        except OSError as error:  # a failed deletion does not affect the new commit
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
