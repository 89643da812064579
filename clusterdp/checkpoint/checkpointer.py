"""Checkpointer: save and restore all that a training run needs to go on exactly where it was.

    checkpointer = Checkpointer("run/checkpoints", {"model": model, "optimizer": optimizer, "sampler": sampler})
    restored = checkpointer.restore()   # the newest good checkpoint; None if there is none yet
    batches = iter(loader)              # draws from torch's random numbers, and so comes before:
    checkpointer.restore_rng()          # last of all
    ...
    checkpointer.save(step)             # when it returns, the checkpoint is durable and is the newest

Every method is collective: call it on every rank, in the same order. One process without a process group will do.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from clusterdp.checkpoint import objects, rng, snapshot
from clusterdp.checkpoint.commit import Committer
from clusterdp.checkpoint.errors import LostContact
from clusterdp.checkpoint.layout import step_folder
from clusterdp.checkpoint.manifest import CheckpointInfo, FileRecord, Manifest, scan
from clusterdp.checkpoint.ranks import Ranks
from clusterdp.checkpoint.restoring import Loaded, read
from clusterdp.checkpoint.tree import unflatten
from clusterdp.checkpoint.writer import Staging, Writer
from clusterdp.errors import CheckpointError, DamagedError
from clusterdp.storage import Storage, open_storage

if TYPE_CHECKING:
    import torch.distributed as dist

_log = logging.getLogger("clusterdp.checkpoint")


@dataclass(frozen=True)
class Commit:
    """A checkpoint that is durable. `bytes` on disk, of all ranks; `seconds` from the call of save() on."""

    step: int
    token: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Restored:
    """What the run goes on from. `exact`: with as many ranks as it was saved with, so that every bit is as it was.

    `skipped` says which newer checkpoints were not good, and why.
    """

    step: int
    token: str
    meta: Any
    exact: bool
    skipped: tuple[str, ...] = ()


class Checkpointer:
    def __init__(
        self,
        url: str | os.PathLike[str] | Storage,
        state: Mapping[str, Any],
        *,
        group: dist.ProcessGroup | None = None,
        keep_last: int = 3,
        keep_every: int | None = None,
        attempt: str = "",
        may_commit: Callable[[], bool] = lambda: True,
        on_commit: Callable[[Commit], None] | None = None,
    ):
        """Collective.

        url: a folder, or a URL that fsspec knows.
        state: name -> anything with state_dict() and load_state_dict(). Equal on all ranks, unless the object has an
            attribute `per_rank = True`. The random numbers of every rank are always saved.
        group: the ranks that save together; by default all. They agree over gloo; a group without it gets one made.
        keep_last, keep_every: the newest so many commits stay, and every m-th of all commits for `keep_every=m`.
        attempt: who is saving, for the record.
        may_commit: asked on rank 0 before each commit and deletion; if not, save() raises ClaimLost on all ranks.
        on_commit: called on rank 0 after each commit.
        """
        if keep_last < 1 or (keep_every is not None and keep_every < 1):
            raise CheckpointError(f"keep_last: {keep_last} with keep_every {keep_every} keeps nothing. Use 1 or more.")
        self.storage = url if isinstance(url, Storage) else open_storage(url)
        self._state = objects.check(state)
        self._ranks = Ranks(group)
        self._committer = Committer(self.storage, attempt, may_commit, keep_last, keep_every)
        self._on_commit = on_commit
        # Job id and restart count repeat (torchrun, a second start by hand): only a random name is ours alone.
        self._run = self._ranks.settle(conclude=lambda _: secrets.token_hex(6))
        self._saves = 0
        self._staging = Staging()
        self._prove_next = False  # the next save is read back: what this run came from is kept until then
        self._rng: dict[str, Any] | None = None
        self._rng_seed: str | None = None

    def save(self, step: int, meta: Mapping[str, Any] | None = None) -> Commit:
        """Commit the state as `step`. If anything fails on any rank, all raise the same CheckpointError, there is no
        new checkpoint, and the old ones are as they were. `meta`: JSON values for restore(), rank 0's."""
        started = time.monotonic()
        token = self._next_token()
        taken = snapshot.take(self._state, self._ranks, step, meta)
        writer = Writer(self.storage, step_folder(step), token, self._ranks.rank, self._ranks.size)
        records: dict[str, FileRecord] = {}
        failure: Exception | None = None
        try:
            staged = writer.stage(self._staging, taken.shared)
            records = writer.write(staged, taken.own, read_back=self._prove_next)
        except Exception as error:
            failure = error
        report = {name: [record.size, record.crc32] for name, record in records.items()}

        def conclude(reports: list[Any]) -> dict[str, Any]:
            files = {name: FileRecord(size, tuple(crc32)) for part in reports for name, (size, crc32) in part.items()}
            total = sum(record.size for record in files.values())
            info = CheckpointInfo(step, token, token, 0, 0.0, self._ranks.size, total, "")
            manifest = Manifest(info, files, taken.shared.layout, taken.shared.skeleton, taken.meta)
            return asdict(self._committer.commit(manifest))

        try:
            info = CheckpointInfo(**self._ranks.settle(failure, report, conclude))
        except LostContact:
            raise  # rank 0 may have committed: the files must stay
        except CheckpointError:
            writer.discard()
            raise
        commit = Commit(step, token, info.bytes, time.monotonic() - started)
        self._after(commit, info)
        return commit

    def _after(self, commit: Commit, info: CheckpointInfo) -> None:
        """What follows a commit on rank 0. If it fails all raise, and the checkpoint stays."""
        proved, self._prove_next = self._prove_next, False

        def conclude(_: list[Any]) -> None:
            if self._on_commit:
                self._on_commit(commit)
            self._committer.tidy(info, proved=proved)

        self._ranks.settle(conclude=conclude)

    def restore(self, step: int | None = None, *, retire_later: bool = False) -> Restored | None:
        """Load the newest good checkpoint, or that of `step`, into the state; restore_rng() is left to the caller.

        None if there are no checkpoints at all. Raises CheckpointError if there are and none is good, and StateError if
        it does not fit the objects. `retire_later`: commit `step` anew, so that from now on it is the newest and not
        those of later steps; a run that goes on from an older step wants this, one that only looks does not.
        """
        listing = self._ranks.settle(conclude=lambda _: self._list(step))
        candidates = [CheckpointInfo(**fields) for fields in listing["candidates"]]
        skipped: list[str] = listing["damaged"]
        if not candidates and not skipped and step is None:
            return None
        loaded = self._first_good(candidates, skipped)
        if loaded is None:
            raise CheckpointError(
                f"{self.storage.url}: there are checkpoints, and none is good: {'; '.join(skipped)}. "
                "Bring one back, or use an empty folder to start from the beginning."
            )
        self._load(loaded)
        info = loaded.manifest.info
        if retire_later and step is not None and info.token != listing["newest"]:
            info = self._commit_anew(loaded.manifest)
        self._committer.pinned = {info.token}
        self._prove_next = True
        exact = info.world_size == self._ranks.size
        if not exact and self._ranks.rank == 0:
            _log.warning(
                "%s was saved by %d ranks, and there are %d now: what each rank had for itself is not restored, ranks "
                "that are new draw other random numbers, and sums are rounded otherwise.",
                *(info.name, info.world_size, self._ranks.size),
            )
        return Restored(info.step, info.token, unflatten(loaded.manifest.meta, {}), exact, tuple(skipped))

    def restore_rng(self) -> None:
        """Set the random number generators as they were. Last of all: a DataLoader's iterator draws from them."""
        if self._rng is not None:
            rng.apply(self._rng)
        elif self._rng_seed is not None:
            rng.derive(self._rng_seed, self._ranks.rank)

    def _next_token(self) -> str:
        self._saves += 1
        return f"{self._run}-{self._saves:04d}"

    def _list(self, step: int | None) -> dict[str, Any]:
        """Rank 0: what there is to restore, the newest commit first."""
        commits, damaged = scan(self.storage)
        for damage in damaged:
            _log.warning("checkpoint skipped: %s", damage.why)
        wanted = [info for info in commits if step is None or info.step == step]
        if step is not None and not wanted:
            steps = ", ".join(str(s) for s in sorted({info.step for info in commits})) or "none"
            raise CheckpointError(f"{self.storage.url}: no checkpoint of step {step}. Those that exist: {steps}.")
        return {
            "candidates": [asdict(info) for info in reversed(wanted)],
            "newest": commits[-1].token if commits else None,
            "damaged": [damage.why for damage in damaged],
        }

    def _first_good(self, candidates: list[CheckpointInfo], skipped: list[str]) -> Loaded | None:
        """The first one that all ranks could read; what was wrong with those before it is added to `skipped`."""
        for info in candidates:
            try:
                return read(self.storage, info, self._ranks)
            except LostContact:
                raise
            except DamagedError as error:
                self._committer.bad.add(info.token)
                skipped.append(str(error))
            except CheckpointError as error:  # not readable now, and perhaps in an hour
                self._committer.unsure.add(info.token)
                skipped.append(f"{info.name}: {error}")
            if self._ranks.rank == 0:
                _log.warning("checkpoint skipped: %s", skipped[-1])
        return None

    def _load(self, loaded: Loaded) -> None:
        """Into the objects, on all ranks or as an error on all."""
        failure: Exception | None = None
        try:
            self._load_here(loaded)
        except Exception as error:
            failure = error
        self._ranks.settle(failure)

    def _load_here(self, loaded: Loaded) -> None:
        shared = {name: thing for name, thing in self._state.items() if not objects.is_per_rank(thing)}
        own = {name: thing for name, thing in self._state.items() if objects.is_per_rank(thing)}
        same_ranks = loaded.manifest.info.world_size == self._ranks.size
        objects.compare_keys("state", shared, loaded.manifest.state)
        for name, thing in shared.items():
            # A module copies what it is given; others keep it.
            objects.load(name, thing, loaded.state(name, copy=not isinstance(thing, torch.nn.Module)))
        if same_ranks and loaded.own is not None:
            objects.compare_keys("state with per_rank = True", own, loaded.own["objects"])
            for name, thing in own.items():
                objects.load(name, thing, loaded.own["objects"][name])
        self._rng = loaded.own["rng"] if loaded.own is not None else None
        self._rng_seed = loaded.manifest.info.data

    def _commit_anew(self, manifest: Manifest) -> CheckpointInfo:
        info = replace(manifest.info, token=self._next_token())
        again = replace(manifest, info=info)
        return CheckpointInfo(**self._ranks.settle(conclude=lambda _: asdict(self._committer.commit(again))))
