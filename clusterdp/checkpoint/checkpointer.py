"""Checkpointer: saves and restores all state that a training run needs to continue exactly where it stopped.

    checkpointer = Checkpointer("run/checkpoints", {"model": model, "optimizer": optimizer, "sampler": sampler})
    restored = checkpointer.restore()   # the newest good checkpoint; None if there is none yet
    batches = iter(loader)              # draws from torch's random numbers: call it before restore_rng()
    checkpointer.restore_rng()          # the last call before the training
    ...
    checkpointer.save(step)             # returns when the checkpoint is durable and is the newest

or, while the training continues,

    checkpointer.async_save(step)       # returns when the state is copied; False if an earlier save is in progress
    checkpointer.step()                 # after every training step: commits, once all ranks have written
    checkpointer.wait()                 # at the end: waits for the last commit

A run of several trainings in sequence calls begin(name, state) before each of them (see Phase).

Call every method on every rank, in the same order: most are collective. A single process needs no process group."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from clusterdp.checkpoint.errors import ClaimLost, LostContact
from clusterdp.checkpoint.format.layout import step_folder
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest
from clusterdp.checkpoint.format.node_file import Room
from clusterdp.checkpoint.format.phase import Phase
from clusterdp.checkpoint.load import import_foreign
from clusterdp.checkpoint.load.choose import choose
from clusterdp.checkpoint.load.restore import LoadedCheckpoint, Restored, put_back
from clusterdp.checkpoint.save import replica_check, state_snapshot
from clusterdp.checkpoint.save.commit import Committer
from clusterdp.checkpoint.save.memory_copies import MemoryCopies
from clusterdp.checkpoint.save.mirror import Mirror
from clusterdp.checkpoint.save.node_writer import NodeWriter
from clusterdp.checkpoint.save.save import STAGES, Commit, Save
from clusterdp.checkpoint.save.writer import RankWriter, StagingMemory
from clusterdp.checkpoint.state import as_built, plain_holders, rng, stateful
from clusterdp.checkpoint.state.rank_group import ProgressExchange, RankGroup, tried
from clusterdp.checkpoint.state.tree import is_replicated, unflatten
from clusterdp.errors import CheckpointError, StateError
from clusterdp.storage import MemoryStorage, Storage, open_storage

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
        memory: MemoryStorage | None = None,
    ):
        """Collective.

        url: a folder, or a URL (clusterdp.storage).
        state: name -> object with state_dict() and load_state_dict(). Its state is equal on all ranks, unless the
            object has the attribute `per_rank = True`, or is a PerRank. The random number generators of every rank are
            always saved.
        group: the ranks that save together; by default all. They agree over gloo: a group without gloo gets a new one.
        keep_last, keep_every: the newest `keep_last` commits are kept, and every `keep_every`-th commit.
        local, keep_local: a folder that all ranks see, for example in the run folder. Checkpoints are committed in it,
            and its newest `keep_local` are kept. Rank 0 copies the newest to `url` whenever `url` can be reached.
        check_replicas_every: the first of every so many saves fails if state differs between ranks, with the names of
            the tensors (0: never). Each rank then also reads its own copy of the next rank's slice.
        attempt: name of the attempt that saves, recorded in each commit.
        may_commit: called on rank 0 before each commit and deletion; if False, save() raises ClaimLost on all ranks.
        on_commit: called on rank 0 after each commit, in a thread.
        memory: the memory of this node, for copy(). restore() prefers the newest copy to an older checkpoint.
        """
        if keep_last < 1 or keep_local < 1 or (keep_every is not None and keep_every < 1):
            raise CheckpointError(
                f"keep_last: {keep_last} with keep_every {keep_every} and keep_local {keep_local} keeps nothing. "
                "Use 1 or more."
            )
        self.storage = url if isinstance(url, Storage) else open_storage(url)
        self._state = stateful.check(state)
        self._built = plain_holders.noted(self._state)
        for thing in self._state.values():
            as_built.note(thing)
        self._ranks = RankGroup(group)
        self._mirror: Mirror | None = None
        if local is not None:
            self._mirror = Mirror(open_storage(local), self.storage, keep_last, keep_every, may_commit)
            self.storage, keep_last, keep_every = self._mirror.near, keep_local, None
        self._committer = Committer(self.storage, attempt, may_commit, keep_last, keep_every)
        self._copies = None if memory is None else MemoryCopies(memory, self._ranks, self._committer)
        self._on_commit = on_commit
        self._check_every = check_replicas_every
        self._check_next = check_replicas_every > 0
        self._commits = 0
        # Only a random name is unique: job id and restart count can repeat, with torchrun or at a second start by hand.
        self._run = self._ranks.agree(conclude=lambda _: secrets.token_hex(6))
        self._saves = 0
        self.token = ""  # of the newest save that has begun here, or of the restored one
        self._memory = StagingMemory()
        self._room: Room | None = Room()  # in the files of nodes; None after a failure: the next save has none
        self._save: Save | None = None  # the save in progress, on all ranks
        self._copies_now = False  # whether this save is a copy
        self._ended = 0  # number of saves that have ended, committed or failed
        self._exchange = ProgressExchange(self._ranks)
        self.compare_s = 0.0  # measured seconds of a comparison of all tensors
        self.skipped = 0  # number of saves skipped since the last commit, because another save was in progress
        # What a resume on another number of ranks reports; empty: nothing.
        self.on_other_ranks = (
            f"{stateful.NOT_RESTORED}, buffers that differed are rank 0's, ranks that are new draw other random "
            "numbers, and sums are rounded otherwise"
        )
        self._prove_next = False  # whether the next save is read back; until then the restored checkpoint is kept
        self._rng: dict[str, Any] | None = None
        self._rng_seed: str | None = None

    def begin(self, name: str, state: Mapping[str, Any], first: int = 0) -> None:
        """Begins a phase: from now on restore() and save() use this phase and this state. The newest commit of each
        phase is kept. first: number of steps that the run has done before this phase; `step` in save() includes these
        steps.

        The previous phase must have saved its end, or been restored at its end: only commits after the end of the
        previous phase belong to the new phase. A call with the name of the current phase only replaces its state.
        """
        self.wait()
        self._state = stateful.check(state)
        self._built = plain_holders.noted(self._state)
        if name != self._committer.phase.name:
            self._committer.phase = Phase(name, self._committer.last_order, first)
        self._check_next = self._check_every > 0

    def save(self, step: int, meta: Mapping[str, Any] | None = None, *, compare_all: bool = False) -> Commit:
        """Commits the state as `step`. If anything fails on any rank, all ranks raise the same CheckpointError, there
        is no new checkpoint, and the old checkpoints are unchanged. `meta`: JSON values that restore() returns; only
        rank 0's `meta` is saved.

        A save in progress ends first; its failure is only logged. compare_all: whether shared state is compared between
        all ranks, as at the last save of an attempt. Other saves compare neighbours only.
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
        """Copies the state, and writes it while the training continues. step() or advance_to() commits the save, or
        raises the save's error.

        If another save is in progress, returns False and counts the new save in `skipped`: the memory is still in use,
        and slow storage must not delay the training. Raises StateError if the state cannot be saved.
        """
        if self._copies_now:
            self.wait()  # milliseconds, and with partners the time to send this rank's files
        if self._save is not None:
            self.skipped += 1
            return False
        self._begin(step, meta, beside=True)
        return True

    def check(self, step: int) -> None:
        """Does what a save does, except to copy and to write the state. Only tensors outside of objects are compared
        between ranks. Raises StateError if the state cannot be saved."""
        taken = state_snapshot.take(self._state, self._ranks, step, None, self._built)
        plain = {name for name, thing in self._state.items() if isinstance(thing, plain_holders.HOLDERS)}
        some = {key: tensor for key, tensor in taken.shared.tensors.items() if key.partition("/")[0] in plain}
        if self._check_every > 0:
            replica_check.compare_all(replace(taken.shared, tensors=some), self._ranks)

    def copy(self, step: int, meta: Mapping[str, Any] | None = None) -> None:
        """Copies the state to the memory of the nodes, while the training continues. The copy counts when step(),
        advance_to() or finish_copy() has committed it. Does nothing if a save is in progress, or if copy_pause_s() is
        None. Raises StateError if the state cannot be saved."""
        copies = self._copies
        if copies is None or self._save is not None:
            return
        started = time.monotonic()
        taken = state_snapshot.take(self._state, self._ranks, step, meta, self._built)
        if self._ranks.nodes > 1 and any(map(is_replicated, taken.shared.tensors.values())):
            self._copies = None  # the ranks that write a shard may be on other nodes than those that need it
            return
        self._copies_now = True
        writer = copies.writer(step, self._next_token())
        self._save = Save(
            self._ranks,
            copies,
            writer,
            taken,
            self._memory,
            started=started,
            read_back=False,
            compare=self._check_every > 0,  # a restore gives all ranks the same state
            on_commit=None,
            gives_way=True,
            exchange=partial(copies.exchange, writer) if copies.partners is not None else None,
        )
        copies.cost_s = time.monotonic() - started

    def finish_copy(self) -> None:
        """Waits for a copy in progress, if there is one, and commits it. With partners, begins the exchange, whose end
        step() or advance_to() notices."""
        if self._copies_now and self._save is not None and self._save.stage == 0:
            self._advance(self._save)

    @property
    def exchange_s(self) -> float:
        """Seconds for which a save may wait for the end of a copy: those of the last exchange with partners."""
        return self._copies.exchange_s if self._copies is not None else 0.0

    def copy_pause_s(self, asked_s: float | None = None) -> float | None:
        """Returns the seconds between two copies: asked_s, or so many that copies take at most 2 % of the time, as the
        last copy shows; None if there are no copies. On rank 0."""
        copies = self._copies
        return copies.pause_s(asked_s) if copies is not None and copies.may_restore else None

    def step(self) -> Commit | None:
        """Advances the save in progress. Call step() once in each training step of a loop without shared flags. During
        a save, the call costs a tiny all-reduce, whose result the next call reads; without a save, nothing. Returns the
        Commit once, when the save is committed. Raises as save() does."""
        if self._save is None:
            return None
        least = self._exchange.exchange(self.progress())
        return self.advance_to(least) if least is not None else None

    def progress(self) -> int:
        """Returns the number of stages that this rank has finished, in all saves. SharedFlags computes the minimum over
        all ranks. Not collective."""
        return STAGES * self._ended + (self._save.here if self._save is not None else 0)

    def advance_to(self, least: int) -> Commit | None:
        """Does the work of step() in a loop with shared flags. least: the minimum progress() of all ranks, the same
        number on all ranks at the same step."""
        if self._save is None or least <= STAGES * self._ended + self._save.stage:
            return None
        return self._advance(self._save)

    def wait(self) -> Commit | None:
        """Waits until the save in progress, if there is one, is committed. Raises as save() does."""
        self._exchange.drain()
        commit, save = None, self._save
        try:
            while self._save is not None:
                commit = self._advance(self._save)  # None after a copy
        finally:
            if save is not None and save.cleaning is not None:
                save.cleaning.result()
        return commit

    def upload(self, seconds: float) -> bool:
        """If the Checkpointer has `local`, waits on rank 0 until `url` has the newest commit. Returns False after
        `seconds`."""
        return self._mirror is None or self._ranks.rank != 0 or self._mirror.wait(seconds)

    def _begin(self, step: int, meta: Mapping[str, Any] | None, *, beside: bool, compare_all: bool = False) -> None:
        started = time.monotonic()
        taken = state_snapshot.take(self._state, self._ranks, step, meta, self._built)
        compare_all = compare_all and self._check_every > 0
        if compare_all:
            replica_check.compare_all(taken.shared, self._ranks)
        of_save = self.storage, step_folder(step), self._next_token(), self._ranks
        is_shared = len(self._ranks.beside) > 1 and self.storage.has_shared_files
        writer = NodeWriter(self._room, *of_save) if self._room and is_shared else RankWriter(*of_save)
        self._save = Save(
            self._ranks,
            self._committer,
            writer,
            taken,
            self._memory,
            started=started,
            read_back=self._prove_next,
            compare=self._check_next and not compare_all,
            on_commit=self._committed,
            gives_way=beside,
        )

    def _advance(self, save: Save) -> Commit | None:
        if self._copies_now:
            self._advance_copy(save)
            return None
        try:
            commit = save.advance()
        except LostContact:
            # After a lost contact this rank waits for nothing, not even for the exchange, because another rank may wait
            # for this rank to send or to end. (With a wait, another rank did not end after one in a thousand kills of a
            # rank.)
            raise
        except CheckpointError:
            self._close(save)
            self._room = None
            raise
        if commit is not None:
            self._prove_next, self._room = False, save.room
            self.compare_s = save.compare_s or self.compare_s
            self._commits += 1  # counts commits, not saves, so that the save after a failed comparison repeats it
            self._check_next = self._check_every > 0 and self._commits % self._check_every == 0
            self.skipped = 0
            self._close(save)
        return commit

    def _advance_copy(self, save: Save) -> None:
        """Does the work of _advance() for a copy. If a copy fails, the training goes on."""
        copies, began = self._copies, time.monotonic()
        assert copies is not None
        try:
            commit = save.advance()
            if commit is None and copies.partners is None:
                commit = save.advance()  # at once, because a commit in memory waits for no file system
            if commit is not None:
                copies.done(commit.token)
        except LostContact:
            raise
        except CheckpointError as error:
            self._close(save)
            copies.failed(error)
            if isinstance(error, StateError):
                raise  # no later save can succeed, either
            return
        copies.cost_s += time.monotonic() - began
        if commit is not None:
            copies.cost_s += save.cpu_s + copies.exchange_s
            self._close(save)

    def _committed(self, commit: Commit) -> None:
        """Runs in rank 0's thread."""
        if self._on_commit:
            self._on_commit(commit)
        if self._mirror is not None:
            self._mirror.notify()

    def _close(self, save: Save) -> None:
        self._save, self._copies_now = None, False
        self._ended += 1
        self._exchange.drain()

    def restore(self, step: int | None = None, *, retire_later: bool = False) -> Restored | None:
        """Loads the newest good checkpoint, or the checkpoint of `step`, into the state. The caller then calls
        restore_rng(). If the run has phases, only checkpoints of this phase are loaded. If `step` belongs to another
        phase, the newest checkpoint of this phase is loaded.

        Returns None if there are no checkpoints at all. Raises CheckpointError if there are checkpoints but no good
        one, and StateError if the checkpoint does not fit the objects. `retire_later`: whether to commit `step` again,
        which makes this checkpoint newer than those of later steps. A run that continues from an older step needs this
        new commit; a program that only reads does not.
        """
        self.wait()
        self._built = plain_holders.noted(self._state)  # again, because the program has built more since
        # A run that continues from `step` has no newer copies before it has committed this step.
        copies = self._copies if step is None or retire_later else None
        choice = choose(self._committer, self._ranks, self._state, step, self._mirror, copies)
        loaded = choice.loaded
        if loaded is None:
            return None
        different = self._load(loaded)
        info = loaded.manifest.info
        if retire_later and step == info.step and info.token != choice.newest and not choice.is_copy:
            info = self._commit_anew(loaded.manifest)
        if self._copies is not None:
            self._copies.done(choice.kept)
        # After a restore from a copy, the checkpoint before it is kept until another one is read back.
        pinned = choice.newest if choice.is_copy else info.token
        self.token = info.data  # of a commit that was made anew, the first one
        self._committer.pinned, self._committer.last_order = {pinned} if pinned else set(), info.order
        self._prove_next = True
        if info.world_size != self._ranks.size and self.on_other_ranks:
            now = f"it was saved by {info.world_size} ranks, and there are {self._ranks.size} now"
            different.append(f"{now}: {self.on_other_ranks}")
        for line in different if self._ranks.rank == 0 else ():
            _log.warning("%s: not exact: %s.", info.name, line)
        meta = unflatten(loaded.manifest.meta, {})
        lists = tuple(choice.skipped), tuple(different)
        return Restored(info.step, info.token, meta, not different, *lists, info.world_size, choice.is_copy)

    def peek(self) -> Any:
        """Returns the `meta` of the newest commit without loading state; None if no `meta` can be read."""
        meta = self._ranks.agree(conclude=lambda _: self._committer.newest_meta())
        return unflatten(meta, {}) if meta is not None else None

    def restore_from(self, path: str | os.PathLike[str], only: Iterable[str] | None = None) -> Restored:
        """Starts from a checkpoint of another program: a file of torch.save(), or its URL, such as the classic dict of
        'model', 'optimizer' and 'amp' or 'scaler'; a folder of torch.distributed.checkpoint; or the files of Hugging
        Face, accelerate and Lightning (foreign_formats.py).

        Every tensor in `path` must belong to an object of the state, and every module, optimizer, scheduler and scaler
        of the state must be in `path`. Otherwise `only` names the objects to restore. Raises StateError with the keys
        that do not fit. Raises StateError before any change if only an unsafe pickle can read the file. Random number
        generators are not changed. Objects that are not restored and hold copies of the weights (O2's masters,
        averages) copy the new weights."""
        self.wait()
        start = self._together(lambda: import_foreign.prepare(os.fspath(path), self._state, only))
        self._together(lambda: import_foreign.put_back(start, self._state))
        return Restored(start.step, "", start.values, exact=False)

    def restore_rng(self) -> None:
        """Restores the random number generators. Call restore_rng() last, because iter(loader) draws from these
        generators."""
        if self._rng is not None:
            rng.apply(self._rng)
        elif self._rng_seed is not None:
            rng.derive(self._rng_seed, self._ranks.rank)

    def _next_token(self) -> str:
        self._saves += 1
        self.token = f"{self._run}-{self._saves:04d}"
        return self.token

    def _load(self, loaded: LoadedCheckpoint) -> list[str]:
        """Loads the state. Returns the differences from the checkpoint on all ranks, as text."""
        here, failure = tried(lambda: put_back(loaded, self._state, self._ranks.size, self._built))
        different = self._ranks.agree(failure, here, lambda every: [*dict.fromkeys(chain(*every))])
        self._rng = loaded.own["rng"] if loaded.own is not None else None
        self._rng_seed = loaded.manifest.info.data
        return different  # type: ignore[no-any-return]

    def _together(self, work: Callable[[], T]) -> T:
        """Calls `work` on every rank. If `work` fails on one rank, all ranks raise the error."""
        result, failure = tried(work)
        self._ranks.agree(failure)
        return result  # type: ignore[return-value]

    def _commit_anew(self, manifest: Manifest) -> CheckpointInfo:
        info = replace(manifest.info, token=self._next_token())
        again = replace(manifest, info=info)
        return CheckpointInfo(**self._ranks.agree(conclude=lambda _: asdict(self._committer.commit(again))))
