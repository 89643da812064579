"""Checkpointer: save and restore all that a training run needs to go on exactly where it was.

    checkpointer = Checkpointer("run/checkpoints", {"model": model, "optimizer": optimizer, "sampler": sampler})
    restored = checkpointer.restore()   # the newest good checkpoint; None if there is none yet
    batches = iter(loader)              # draws from torch's random numbers, and so comes before:
    checkpointer.restore_rng()          # last of all
    ...
    checkpointer.save(step)             # when it returns, the checkpoint is durable and is the newest

or, while the training goes on,

    checkpointer.async_save(step)       # returns when the state has been copied; False if one is on its way still
    checkpointer.step()                 # after every training step: commits, once all ranks have written
    checkpointer.wait()                 # at the end

A run of several trainings, one after the other, calls begin(name, state) before each: see Phase.

Every method is collective: call it on every rank, in the same order. A single process needs no process group."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from clusterdp.checkpoint.errors import ClaimLost, LostContact
from clusterdp.checkpoint.format.layout import step_folder
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest
from clusterdp.checkpoint.format.phase import Phase
from clusterdp.checkpoint.load import import_foreign
from clusterdp.checkpoint.load.choose import choose
from clusterdp.checkpoint.load.restore import LoadedCheckpoint, Restored, put_back
from clusterdp.checkpoint.save import replica_check, state_snapshot
from clusterdp.checkpoint.save.commit import Committer
from clusterdp.checkpoint.save.mirror import Mirror
from clusterdp.checkpoint.save.save import STAGES, Commit, Save
from clusterdp.checkpoint.save.writer import RankWriter, Staging
from clusterdp.checkpoint.state import as_built, rng, stateful
from clusterdp.checkpoint.state.rank_group import ProgressExchange, RankGroup, tried
from clusterdp.checkpoint.state.tree import unflatten
from clusterdp.errors import CheckpointError
from clusterdp.storage import Storage, open_storage

if TYPE_CHECKING:
    import torch.distributed as dist

T = TypeVar("T")
_log = logging.getLogger("clusterdp.checkpoint")


class Checkpointer:
    """Saves and restores the state of a training, by all ranks together."""

    def __init__(
        self,
        url: str | os.PathLike[str] | Storage,
        state: Mapping[str, Any],
        *,
        group: dist.ProcessGroup | None = None,
        keep_last: int = 3,
        keep_every: int | None = None,
        local: str | os.PathLike[str] | None = None,
        keep_local: int = 2,
        attempt: str = "",
        check_replicas_every: int = 1,
        may_commit: Callable[[], bool] = lambda: True,
        on_commit: Callable[[Commit], None] | None = None,
    ):
        """Collective.

        url: a folder, or a URL that fsspec knows.
        state: name -> anything with state_dict() and load_state_dict(). Equal on all ranks, unless the object has an
            attribute `per_rank = True`. The random numbers of every rank are always saved.
        group: the ranks that save together; by default all. They agree over gloo; a group without it gets one made.
        keep_last, keep_every: the newest so many commits stay, and every m-th of all commits for `keep_every=m`.
        local, keep_local: a folder that all ranks see, such as the run folder's. Checkpoints are committed there, the
            newest `keep_local` stay there, and rank 0 copies the newest to `url` when that can be reached.
        check_replicas_every: at the first of every so many saves, state that differs between ranks fails the save with
            the names of the tensors (0: never). The call then reads the next rank's slice as well.
        attempt: who is saving, for the record.
        may_commit: asked on rank 0 before each commit and deletion; if not, save() raises ClaimLost on all ranks.
        on_commit: called on rank 0 after each commit, in a thread.
        """
        if keep_last < 1 or keep_local < 1 or (keep_every is not None and keep_every < 1):
            raise CheckpointError(
                f"keep_last: {keep_last} with keep_every {keep_every} and keep_local {keep_local} keeps nothing. "
                "Use 1 or more."
            )
        self.storage = url if isinstance(url, Storage) else open_storage(url)
        self._state = stateful.check(state)
        for thing in self._state.values():
            as_built.note(thing)
        self._ranks = RankGroup(group)
        self._mirror: Mirror | None = None
        if local is not None:
            self._mirror = Mirror(open_storage(local), self.storage, keep_last, keep_every, may_commit)
            self.storage, keep_last, keep_every = self._mirror.near, keep_local, None
        self._committer = Committer(self.storage, attempt, may_commit, keep_last, keep_every)
        self._on_commit = on_commit
        self._check_every = check_replicas_every
        self._check_next = check_replicas_every > 0
        self._commits = 0
        # Job id and restart count repeat (torchrun, a second start by hand): only a random name is ours alone.
        self._run = self._ranks.agree(conclude=lambda _: secrets.token_hex(6))
        self._saves = 0
        self._staging = Staging()
        self._save: Save | None = None  # on its way, on all ranks
        self._ended = 0  # saves, well or badly
        self._exchange = ProgressExchange(self._ranks)
        self.skipped = 0  # saves that were due while one was on its way, since the last commit
        self._prove_next = False  # the next save is read back: what this run came from is kept until then
        self._rng: dict[str, Any] | None = None
        self._rng_seed: str | None = None

    def begin(self, name: str, state: Mapping[str, Any], first: int = 0) -> None:
        """Begin a phase: from here on restore() and save() are for this phase and this state. The newest commit of each
        phase is kept. first: the steps that the run has done so far; save() counts on from there.

        The phase before must have been restored at its end, or have saved its end: only later commits count for this
        one. Beginning the current phase again changes its state alone.
        """
        self.wait()
        self._state = stateful.check(state)
        if name != self._committer.phase.name:
            self._committer.phase = Phase(name, self._committer.last_order, first)
        self._check_next = self._check_every > 0

    def save(self, step: int, meta: Mapping[str, Any] | None = None, *, compare_all: bool = False) -> Commit:
        """Commit the state as `step`. If anything fails on any rank, all raise the same CheckpointError, there is no
        new checkpoint, and the old ones are as they were. `meta`: JSON values for restore(), rank 0's.

        A save that is on its way is waited for first; should that one fail, it is logged. compare_all: what is to be
        equal on all ranks is compared on all of them, and not with the next one alone; for the last save of a run.
        """
        try:
            self.wait()
        except (ClaimLost, LostContact):
            raise
        except CheckpointError as error:
            _log.warning("a checkpoint was not saved: %s", error)
        self._begin(step, meta, beside=False, compare_all=compare_all)
        commit = self.wait()
        assert commit is not None
        return commit

    def async_save(self, step: int, meta: Mapping[str, Any] | None = None) -> bool:
        """Copy the state, and write it while the training goes on. step() or advance_to() commits it, or raises what
        failed.

        False, and counted in `skipped`, if one is on its way still: its memory is in use, and a storage that cannot
        keep up must not hold up the training. Raises StateError if the state cannot be saved.
        """
        if self._save is not None:
            self.skipped += 1
            return False
        self._begin(step, meta, beside=True)
        return True

    def step(self) -> Commit | None:
        """Call it once in each training step, in a loop that has no shared flags. It costs nothing unless a save is on
        its way; then it is a tiny all-reduce, whose result is read in the next call. Returns the Commit, once; raises
        as save() does."""
        if self._save is None:
            return None
        least = self._exchange.exchange(self.progress())
        return self.advance_to(least) if least is not None else None

    def progress(self) -> int:
        """How far this rank has come. Shared flags make the least of all ranks' known to all. No collective."""
        return STAGES * self._ended + (self._save.here if self._save is not None else 0)

    def advance_to(self, least: int) -> Commit | None:
        """As step(), for a loop that has shared flags. least: the least progress() of all ranks, known to all of
        them at the same step."""
        if self._save is None or least <= STAGES * self._ended + self._save.stage:
            return None
        return self._advance(self._save)

    def wait(self) -> Commit | None:
        """Wait until the save that is on its way, if there is one, is committed. Raises as save() does."""
        self._exchange.drain()
        commit, save = None, self._save
        try:
            while self._save is not None:
                commit = self._advance(self._save)
        finally:
            if save is not None and save.cleaning is not None:
                save.cleaning.result()
        return commit

    def upload(self, seconds: float) -> bool:
        """With `local`: on rank 0, wait until the store has the newest commit; False if that takes longer."""
        return self._mirror is None or self._ranks.rank != 0 or self._mirror.wait(seconds)

    def _begin(self, step: int, meta: Mapping[str, Any] | None, *, beside: bool, compare_all: bool = False) -> None:
        started = time.monotonic()
        taken = state_snapshot.take(self._state, self._ranks, step, meta)
        compare_all = compare_all and self._check_every > 0
        if compare_all:
            replica_check.compare_all(taken.shared, self._ranks)
        writer = RankWriter(self.storage, step_folder(step), self._next_token(), self._ranks)
        self._save = Save(
            self._ranks,
            self._committer,
            writer,
            taken,
            self._staging,
            started=started,
            read_back=self._prove_next,
            compare=self._check_next and not compare_all,
            on_commit=self._committed,
            gives_way=beside,
        )

    def _advance(self, save: Save) -> Commit | None:
        try:
            commit = save.advance()
        except LostContact:
            # Wait for nothing any more, least of all for the exchange: it may wait for a rank that waits for this one
            # to send, or to end. (A survivor of a killed rank did not end, once in a thousand kills.)
            raise
        except CheckpointError:
            self._close(save)
            raise
        if commit is not None:
            self._prove_next = False
            self._commits += 1  # not _saves: a comparison that has failed is done again
            self._check_next = self._check_every > 0 and self._commits % self._check_every == 0
            self.skipped = 0
            self._close(save)
        return commit

    def _committed(self, commit: Commit) -> None:
        """In rank 0's thread."""
        if self._on_commit:
            self._on_commit(commit)
        if self._mirror is not None:
            self._mirror.notify()

    def _close(self, save: Save) -> None:
        self._save = None
        self._ended += 1
        self._exchange.drain()

    def restore(self, step: int | None = None, *, retire_later: bool = False) -> Restored | None:
        """Load the newest good checkpoint, or that of `step`, into the state. The caller calls restore_rng(). With
        phases, only checkpoints of this phase count; if `step` belongs to another phase, it is this phase's newest.

        None if there are no checkpoints at all. Raises CheckpointError if there are and none is good, and StateError if
        it does not fit the objects. `retire_later`: commit `step` anew, so that from now on it is the newest and not
        those of later steps; a run that goes on from an older step wants this, one that only looks does not.
        """
        self.wait()
        choice = choose(self._committer, self._ranks, self._state, step, self._mirror)
        loaded = choice.loaded
        if loaded is None:
            return None
        different = self._load(loaded)
        info = loaded.manifest.info
        if retire_later and step == info.step and info.token != choice.newest:
            info = self._commit_anew(loaded.manifest)
        self._committer.pinned, self._committer.last_order = {info.token}, info.order
        self._prove_next = True
        if info.world_size != self._ranks.size:
            different.append(
                f"it was saved by {info.world_size} ranks, and there are {self._ranks.size} now: what each rank had "
                "for itself is not restored, buffers that differed are rank 0's, ranks that are new draw other random "
                "numbers, and sums are rounded otherwise"
            )
        for line in different if self._ranks.rank == 0 else ():
            _log.warning("%s: not exact: %s.", info.name, line)
        meta = unflatten(loaded.manifest.meta, {})
        lists = tuple(choice.skipped), tuple(different)
        return Restored(info.step, info.token, meta, not different, *lists, info.world_size)

    def peek(self) -> Any:
        """The `meta` of the newest commit; nothing is loaded. None if there is none that can be read."""
        meta = self._ranks.agree(conclude=lambda _: self._committer.newest_meta())
        return unflatten(meta, {}) if meta is not None else None

    def restore_from(self, path: str | os.PathLike[str], only: Iterable[str] | None = None) -> Restored:
        """Start from what another program has saved: a file of torch.save() such as the classic dict of 'model',
        'optimizer' and 'amp' or 'scaler' (or a URL of one), a folder of torch.distributed.checkpoint, or what Hugging
        Face, accelerate and Lightning write (library_formats.py).

        Every tensor in there must find its object, and every module, optimizer, scheduler and scaler here its state;
        `only` names the objects to restore if that is not so. Raises StateError with the keys that do not fit, and
        before anything is changed if it would take a pickle to read it. Random numbers stay as they are. Objects that
        were not restored and have copies of the weights (O2's masters, averages) make them anew."""
        self.wait()
        start = self._together(lambda: import_foreign.prepare(os.fspath(path), self._state, only))
        self._together(lambda: import_foreign.put_back(start, self._state))
        return Restored(start.step, "", start.values, exact=False)

    def restore_rng(self) -> None:
        """Set the random number generators as they were. Last of all: a DataLoader's iterator draws from them."""
        if self._rng is not None:
            rng.apply(self._rng)
        elif self._rng_seed is not None:
            rng.derive(self._rng_seed, self._ranks.rank)

    def _next_token(self) -> str:
        self._saves += 1
        return f"{self._run}-{self._saves:04d}"

    def _load(self, loaded: LoadedCheckpoint) -> list[str]:
        """Returns, in words, what differs from the checkpoint on any rank."""
        here = self._together(lambda: put_back(loaded, self._state, self._ranks.size))
        different = self._ranks.agree(report=here, conclude=lambda every: [*dict.fromkeys(chain(*every))])
        self._rng = loaded.own["rng"] if loaded.own is not None else None
        self._rng_seed = loaded.manifest.info.data
        return different  # type: ignore[no-any-return]

    def _together(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank. If it fails on one, all raise."""
        result, failure = tried(work)
        self._ranks.agree(failure)
        return result  # type: ignore[return-value]

    def _commit_anew(self, manifest: Manifest) -> CheckpointInfo:
        info = replace(manifest.info, token=self._next_token())
        again = replace(manifest, info=info)
        return CheckpointInfo(**self._ranks.agree(conclude=lambda _: asdict(self._committer.commit(again))))
