"""MemoryCopies: commits in the memory of the nodes, for ranks that start again on the same nodes.

A copy has the same files as a checkpoint. Each rank's files are in its own node's memory, and the manifest is in that
of rank 0's node. A copy has the order of the checkpoint before it, and a later time (Committer.next_time), so that it
is newer than this checkpoint, and older than the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from clusterdp.checkpoint.errors import not_saved
from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.checkpoint.format.layout import BLOCK, step_folder, token_of_file, token_of_manifest
from clusterdp.checkpoint.format.manifest import CheckpointInfo, FileRecord, Manifest, scan
from clusterdp.checkpoint.save.commit import Committer
from clusterdp.checkpoint.save.partners import Partners
from clusterdp.checkpoint.save.writer import RankWriter, Staged
from clusterdp.checkpoint.state.rank_group import RankGroup
from clusterdp.errors import CheckpointError
from clusterdp.procfs import memory_of_job
from clusterdp.storage import MemoryStorage
from clusterdp.storage.memory import HELD

SHARE = 0.25  # of the job's memory on a node: limit for the copies, of which there are two while one is written
SPARE = 0.1  # of the job's memory on a node: stays free when a copy is written
PACE = 0.015  # share of the time that is for copies, so that steps are at most 2 % slower
LEAST_S = 1.0  # seconds between two copies, if no number is asked for
RETRY_S = 5.0  # seconds after a first failure, because the keepers may start later than the ranks; then doubled
LONGEST_RETRY_S = 600.0
TOLD_AFTER = 3  # failures in a row, which are then reported once; after them, copies have no partners
_GENERATIONS = 2
_log = logging.getLogger("clusterdp.checkpoint")


@dataclass
class MemoryCopies:
    """The copies of one training. `commit`, `discard` and `tidy` are those of a Committer."""

    storage: MemoryStorage
    ranks: RankGroup
    of: Committer  # commits the checkpoints
    failures: int = 0  # number of failed copies in a row: equal on all ranks
    cost_s: float = 0.0  # seconds that the last copy took of the training, and of a processor
    exchange_s: float = 0.0  # seconds of the last exchange with partners
    newest: str = ""  # token of the newest good copy
    highest: int = 0  # on rank 0, the highest order of a checkpoint at the restore, good or not

    def __post_init__(self) -> None:
        possible = Partners.are_possible(self.storage, self.ranks)
        self.partners = Partners(self.storage, self.ranks) if possible else None
        self._held_rank = self.partners.of if self.partners else None

    @property
    def may_restore(self) -> bool:
        """Whether a copy of this phase can be found again: not before the first checkpoint of a second phase. On rank
        0."""
        return self._order > self.of.phase.after

    @property
    def _order(self) -> int:
        return max(self.of.last_order, self.highest)

    def pause_s(self, asked_s: float | None) -> float:
        """Returns the seconds between two copies. asked_s: checkpoint.memory_s."""
        if self.failures:
            return min(RETRY_S * 2.0 ** (self.failures - 1), LONGEST_RETRY_S)
        return asked_s or max(self.cost_s / PACE, LEAST_S)

    def writer(self, step: int, token: str) -> RankWriter:
        return _CopyWriter(self.storage, step_folder(step), token, self.ranks, places=2 if self.partners else 1)

    def exchange(self, writer: RankWriter) -> None:
        """Exchanges the files of a copy with partners, in a thread."""
        assert self.partners is not None
        began = time.monotonic()
        self.partners.exchange(writer.folder, writer.token)
        self.exchange_s = time.monotonic() - began

    def bring_back(self) -> None:
        """Collective, before a restore: ranks on a new node get their files from their partners."""
        if self.partners is not None:
            self.partners.bring_back()

    def newer(self, than: CheckpointInfo | None) -> tuple[list[CheckpointInfo], str]:
        """Returns, on rank 0, the copies of this phase that are newer than a checkpoint and that these ranks can
        restore, the newest first; and the token of the newest copy of another phase, which restores it later."""
        with suppress(OSError):  # the keeper has not started yet, or has ended
            copies, _ = scan(self.storage)
            newer = [info for info in reversed(copies) if than is None or info.age > than.age]
            fit = [info for info in newer if self.of.phase.has(info) and info.world_size == self.ranks.size]
            return fit, next((info.token for info in newer if info.phase != self.of.phase.name), "")
        return [], ""

    def commit(self, manifest: Manifest) -> CheckpointInfo:
        info = replace(manifest.info, order=self._order, committed_at=self.of.next_time(), attempt=self.of.attempt)
        info = replace(info, phase=self.of.phase.name)
        try:
            self.storage.publish(info.name, replace(manifest, info=info).encode())
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{info.name}", error) from error
        return info

    def discard(self, info: CheckpointInfo) -> None:
        """The ranks call failed()."""

    def tidy(self, newest: CheckpointInfo, *, proved: bool) -> None:
        """The ranks call done()."""

    def done(self, token: str) -> None:
        """Removes this rank's files of all other copies, so that there are never more than two. Called on all ranks
        after a commit and after a restore. token: the copy to keep; empty if there is none."""
        self.failures, self.newest = 0, token
        self._remove(lambda other: other != token)

    def failed(self, why: CheckpointError) -> None:
        """Frees the memory of a failed copy. Called on all ranks. The next try comes later each time. After some
        failures copies have no partners, because there may be room for one place."""
        self.failures += 1
        if self.failures == TOLD_AFTER:
            self.partners = None
        if self.failures == TOLD_AFTER and self.ranks.rank == 0:
            said = str(why).rstrip(".")
            _log.warning("the state is not copied to the memory of the nodes, which is tried again: %s.", said)
        self._remove(lambda other: other != self.newest)
        self.storage.free_spares()

    def drop(self, token: str) -> None:
        """Removes this rank's files of a damaged copy."""
        self._remove(lambda other: other == token)

    def _remove(self, unwanted: Callable[[str], bool]) -> None:
        with suppress(OSError):  # if the keeper has ended, the next copy fails on all ranks
            for name in self.storage.names():
                file = name.rpartition("/")[2]
                of_manifest = token_of_manifest(file)
                token = of_manifest or token_of_file(file) or ""
                rank = self._held_rank if name.startswith(f"{HELD}/") else self.ranks.rank
                if rank is None:
                    continue
                mine = rank == 0 if of_manifest else file.startswith(f"{token}-r{rank:04d}")
                if mine and unwanted(token):
                    self.storage.remove(name)


class _CopyWriter(RankWriter):
    """Writes the files of a copy, in the thread of a save. places: the number of ranks whose files this rank has."""

    def __init__(self, storage: MemoryStorage, folder: str, token: str, ranks: RankGroup, places: int):
        super().__init__(storage, folder, token, ranks)
        self._places = places

    def write(self, staged: Staged, *, read_back: bool) -> dict[str, FileRecord]:
        size = len(staged.slice) + len(staged.local or b"") + len(staged.rank_file)
        assert isinstance(self.storage, MemoryStorage)
        check_room(size * self._places, -(-self.ranks.size // self.ranks.nodes), self.storage.spare_bytes)
        return super().write(staged, read_back=read_back)

    def discard(self) -> None:
        """The ranks call failed(), which must not run beside a thread of this save."""

    def _create(self, name: str, data: memoryview) -> FileRecord:
        sums: list[int] = []

        def blocks() -> Iterator[memoryview]:  # a block is still in the processor's cache when it is written
            for start in range(0, len(data), BLOCK):
                block = data[start : start + BLOCK]
                sums.append(checksum(block))
                yield block

        try:
            self.storage.write(f"{self.folder}/{name}", blocks())
        except OSError as error:
            raise not_saved(f"{self.storage.url}/{self.folder}/{name}", error) from error
        return FileRecord(len(data), tuple(sums))


def check_room(size: int, ranks: int, has: int, root: Path = Path("/")) -> None:
    """Raises CheckpointError if this node has no memory for the copies of `ranks` ranks with `size` bytes each. has:
    bytes that each rank has already for its next copy."""
    limit, free = memory_of_job(root)
    needed = size * ranks * _GENERATIONS
    if needed > SHARE * limit:
        raise CheckpointError(
            f"{needed / 1e9:.1f} GB for copies of the state would be more than {SHARE:.0%} of the job's "
            f"{limit / 1e9:.1f} GB on this node"
        )
    if (size - has) * ranks > free - SPARE * limit:
        raise CheckpointError(
            f"{size * ranks / 1e9:.1f} GB for a copy of the state would leave less than {SPARE:.0%} of the job's "
            f"{limit / 1e9:.1f} GB on this node"
        )
