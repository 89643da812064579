"""Mirror: copies the commits of a local folder to a store, whenever the store can be reached.

A store that is slow or unreachable for an hour does not stop the run, because the run saves to the local folder, and
can resume from this folder. Every rank must see the local folder, for example in the run folder. A thread on rank 0
copies the newest commit, and skips commits that it has no time for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence

from clusterdp.checkpoint.format import retention
from clusterdp.checkpoint.format.layout import BLOCK
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, scan
from clusterdp.checkpoint.format.phase import Phase
from clusterdp.checkpoint.format.verified_reads import (
    BlockRange,
    check_sizes,
    data_of,
    ranges_of_file,
    read_manifest,
)
from clusterdp.errors import CheckpointError, DamagedError
from clusterdp.storage import Storage

LONGEST_PAUSE_S = 60.0  # seconds between two attempts to reach a store
_log = logging.getLogger("clusterdp.checkpoint")


class Mirror:
    """Copies commits on rank 0. `near` is the local folder, `far` the store. A commit has the same bytes in both."""

    def __init__(
        self, near: Storage, far: Storage, keep_last: int, keep_every: int | None, may_commit: Callable[[], bool]
    ):
        self.near, self.far = near, far
        self._keep_last, self._keep_every, self._may_commit = keep_last, keep_every, may_commit
        self._changed = threading.Condition()
        self._wanted = 0  # number of calls of notify()
        self._done = 0  # number of calls of notify() whose commits are copied
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Starts a copy, because `near` has a newer commit, or may have one."""
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="clusterdp-mirror", daemon=True)
                self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Waits until the commits of all notify() calls are copied. Returns False if the copies take longer than
        `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= self._wanted, seconds)

    def bring_back(self, phase: Phase, step: int | None) -> list[CheckpointInfo]:
        """Copies the store's newest commit of the phase, or the commit of `step`, to `near` before a restore, if `near`
        lacks it. Returns all commits of the store; an empty list if the store cannot be reached.

        `near` lacks commits of the store only if somebody has emptied `near`. Raises OSError if the store cannot be
        reached and `near` is empty, because the run may have checkpoints in the store.
        """
        near, _ = scan(self.near)
        try:
            there, damaged = scan(self.far)
        except OSError as error:
            if not near:
                raise
            _log.warning("%s: %s. Going on from %s.", self.far.url, error, self.near.url)
            return []
        commits, of_phase = ([info for info in some if phase.has(info)] for some in (near, there))
        newest = commits[-1].age if commits else (0, 0.0, "")
        wanted = [info for info in of_phase if info.step == step] or [info for info in of_phase if info.age > newest]
        bad = [damage.why for damage in damaged]
        for info in reversed(wanted):
            if info in commits:
                break
            try:
                self._copy(self.far, self.near, info)
            except DamagedError as error:
                _log.warning("checkpoint skipped: %s", error)
                bad.append(str(error))
                continue
            self.near.publish(info.name, self.far.read(info.name))
            return there
        if near:
            self.notify()  # copies commits that an earlier attempt had no time to copy
        elif bad:
            raise CheckpointError(f"{self.far.url}: there are checkpoints, and none is good: {'; '.join(bad)}.")
        return there

    def _run(self) -> None:
        pause = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._done < self._wanted)
                wanted = self._wanted
            newest: list[CheckpointInfo] = []
            try:
                newest = self._newest()
                self._catch_up(newest)
            except (OSError, CheckpointError) as error:
                if newest and newest != self._newest():
                    continue  # meanwhile, retention has removed a commit because of a newer commit
                if pause == 0.0:
                    _log.warning("%s: %s. Checkpoints stay in %s meanwhile.", self.far.url, error, self.near.url)
                pause = min(LONGEST_PAUSE_S, max(1.0, 2 * pause))
                with self._changed:
                    self._changed.wait_for(lambda wanted=wanted: self._wanted > wanted, pause)  # type: ignore[misc]
                continue
            if pause:
                _log.warning("%s: can be reached again, and is up to date.", self.far.url)
            pause = 0.0
            with self._changed:
                self._done = max(self._done, wanted)
                self._changed.notify_all()

    def _newest(self) -> list[CheckpointInfo]:
        """Returns the newest commit of each phase, oldest first."""
        commits, _ = scan(self.near)
        return sorted({info.phase: info for info in commits}.values(), key=lambda info: info.age)

    def _catch_up(self, newest: list[CheckpointInfo]) -> None:
        there, _ = scan(self.far)
        missing = [info for info in newest if info.token not in {other.token for other in there}]
        if not missing:
            return
        for info in missing:
            if not self._may_commit():
                return
            self._copy(self.near, self.far, info)
            if not self._may_commit():
                return
            self.far.publish(info.name, self.near.read(info.name))
            there.append(info)
        victims = retention.to_delete(there, self._keep_last, self._keep_every)
        retention.prune(self.far, there, victims, self._may_commit)

    def _copy(self, source: Storage, target: Storage, info: CheckpointInfo) -> None:
        """Copies every file, and verifies it against the manifest. A file that `target` has in full is not copied."""
        manifest = read_manifest(source, info)
        target.make_folder(info.folder)
        there = set(target.list(info.folder))
        of_path: dict[str, list[FileRecord]] = {}
        for name, record in manifest.files.items():
            of_path.setdefault(record.path(f"{info.folder}/{name}"), []).append(record)
        for path, records in of_path.items():
            records.sort(key=lambda record: record.start)
            ranges = [blocks for record in records for blocks in ranges_of_file(path, record, head=0)]
            if path.rpartition("/")[2] in there:
                if target.size(path) == records[0].on_disk:
                    continue
                target.remove(path)  # the file is incomplete, because an earlier copy was killed
            check_sizes(source, ranges)
            target.write(path, _content(source, ranges, records[0].on_disk))
        target.sync_folder(info.folder)


def _content(source: Storage, ranges: Sequence[BlockRange], size: int) -> Iterator[memoryview]:
    """Yields the verified bytes of a file, with zeros where no section is."""
    at = 0
    for blocks in ranges:
        start = blocks.record.start + blocks.first * BLOCK
        yield memoryview(bytes(start - at))
        yield data_of(source, blocks)
        at = start + blocks.size
    yield memoryview(bytes(size - at))
