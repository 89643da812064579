"""The checkpoint to restore: the newest good one. Bad checkpoints are logged and skipped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, TypeVar

from clusterdp.checkpoint.errors import LostContact
from clusterdp.checkpoint.format.layout import step_of
from clusterdp.checkpoint.format.manifest import CheckpointInfo, scan
from clusterdp.checkpoint.format.phase import called
from clusterdp.checkpoint.load.restore import LoadedCheckpoint, compare, read, without_garbage_collection
from clusterdp.checkpoint.save.commit import Committer
from clusterdp.checkpoint.save.memory_copies import MemoryCopies
from clusterdp.checkpoint.save.mirror import Mirror
from clusterdp.checkpoint.state.rank_group import RankGroup, tried
from clusterdp.errors import CheckpointError, DamagedError
from clusterdp.storage import Storage

T = TypeVar("T")
_log = logging.getLogger("clusterdp.checkpoint")
# An I/O error of a shared file system may soon be over, and to skip a checkpoint because of this error would lose
# training. A store (Storage.rereads is False) is not read again, because the store's client has already retried for
# long enough.
PAUSES_S = (0.2, 1.0, 4.0)


@dataclass
class ChosenCheckpoint:
    """The checkpoint to restore."""

    loaded: LoadedCheckpoint | None  # None if there are no checkpoints
    newest: str | None  # token of the newest commit, whether good or not
    skipped: list[str] = field(default_factory=list)
    is_copy: bool = False  # whether the checkpoint was in the memory of the nodes
    kept: str = ""  # token of the copy to keep in memory: the chosen one, or one of another phase
    is_partly_filled: bool = False  # whether live tensors may have bytes of a damaged checkpoint


@without_garbage_collection()
def choose(
    committer: Committer,
    ranks: RankGroup,
    state: Mapping[str, Any],
    step: int | None,
    mirror: Mirror | None,
    copies: MemoryCopies | None = None,
) -> ChosenCheckpoint:
    """Collective. Chooses among the checkpoints of the committer's phase, and fills the live tensors of `state` from
    the chosen one. If `step` is given and belongs to this phase, only checkpoints of `step` are tried; else, copies
    that are newer than the newest checkpoint are tried first.

    Raises StateError if the objects do not match the saved objects. Raises CheckpointError if there are checkpoints but
    no good one, or if this phase should have a checkpoint and has none. Live tensors may then have changed.
    """
    if copies is not None:
        copies.bring_back()
    listing = ranks.agree(conclude=lambda _: _list(committer, step, mirror, copies))
    candidates = [CheckpointInfo(**fields) for fields in listing["candidates"]]
    choice = ChosenCheckpoint(None, listing["newest"], listing["damaged"], kept=listing["kept"])
    is_empty = not candidates and not choice.skipped
    if is_empty and not listing["copies"]:
        return choice
    for info in (CheckpointInfo(**fields) for fields in listing["copies"]):
        assert copies is not None
        copies.storage.verifies_first = not candidates  # else bytes of a damaged copy might stay
        choice.loaded, error = _try_one(copies.storage, info, ranks, state, choice)
        copies.storage.forget_all()
        if choice.loaded is not None:
            choice.is_copy, choice.kept = True, info.token
            return choice
        if isinstance(error, DamagedError):
            copies.drop(info.token)
    if is_empty:  # no copy is good: the run starts from the beginning
        return choice
    for info in candidates:
        choice.loaded = _try(committer, info, ranks, state, mirror, choice)
        if choice.loaded is not None:
            return choice
    raise CheckpointError(
        f"{committer.storage.url}: there are checkpoints, and none is good: {'; '.join(choice.skipped)}. "
        "Restore one from a copy, or use an empty folder to start from the beginning."
        + (" Do not train on in this process: part of the state may be overwritten." if choice.is_partly_filled else "")
    )


def _list(committer: Committer, step: int | None, mirror: Mirror | None, copies: MemoryCopies | None) -> dict[str, Any]:
    """Returns, on rank 0, the checkpoints to try, the newest commit first."""
    phase = committer.phase
    far = mirror.bring_back(phase, step) if mirror is not None else []
    for _ in _tries(committer.storage):
        commits, damaged = scan(committer.storage)
        if not any(damage.unread for damage in damaged):
            break
    for damage in damaged:
        _log.warning("checkpoint skipped: %s", damage.why)
    own = [info for info in commits if phase.has(info)]
    wanted = [info for info in own if step is None or info.step == step]
    if not wanted and any(info.step == step and info.phase != phase.name for info in commits):
        wanted = own
    elif step is not None and not wanted:
        steps = ", ".join(str(s) for s in sorted({info.step for info in commits})) or "none"
        raise CheckpointError(f"{committer.storage.url}: no checkpoint of step {step}. Those that exist: {steps}.")
    if not own:
        _refuse_others(committer, [*commits, *far])
    later = [damage for damage in damaged if (step_of(damage.name.partition("/")[0]) or 0) > phase.first]
    newer: list[CheckpointInfo] = []
    of_other = ""
    if copies is not None:
        copies.highest = max((info.order for info in commits), default=0)
        newer, of_other = copies.newer(own[-1] if own else None)
        committer.last_at = max((info.committed_at for info in [*commits, *newer]), default=0.0)
        if step is not None and (not own or own[-1].step != step):
            newer = []
    return {
        "copies": [asdict(info) for info in newer],
        "kept": of_other,
        "candidates": [asdict(info) for info in reversed(wanted)],
        "newest": commits[-1].token if commits else None,
        "damaged": [damage.why for damage in (later if phase.first else damaged)],
    }


def _refuse_others(committer: Committer, commits: Sequence[CheckpointInfo]) -> None:
    """Raises CheckpointError if later phases have commits and this phase has none: a later phase begins only after
    this one has saved."""
    phase = committer.phase
    others = dict.fromkeys(info.phase for info in commits if info.order > phase.after)
    if others:
        raise CheckpointError(
            f"{committer.storage.url}: there is no checkpoint of {called(phase.name)}, and there are some of "
            f"{', '.join(map(called, others))}: this is not the program that saved them. Name its phases as they were, "
            "and begin them in the same order, or use an empty folder to start from the beginning."
        )


def _try(
    committer: Committer,
    info: CheckpointInfo,
    ranks: RankGroup,
    state: Mapping[str, Any],
    mirror: Mirror | None,
    choice: ChosenCheckpoint,
) -> LoadedCheckpoint | None:
    """Returns the checkpoint, with filled live tensors, if all ranks can read it from the local folder or from the
    store; None if a rank cannot."""
    for storage in (committer.storage, mirror.far) if mirror is not None else (committer.storage,):
        loaded, error = _try_one(storage, info, ranks, state, choice)
        if error is None:
            return loaded
        if storage is committer.storage:  # a checkpoint that cannot be read now can perhaps be read in an hour
            (committer.bad if isinstance(error, DamagedError) else committer.unsure).add(info.token)
    return None


def _try_one(
    storage: Storage, info: CheckpointInfo, ranks: RankGroup, state: Mapping[str, Any], choice: ChosenCheckpoint
) -> tuple[LoadedCheckpoint | None, CheckpointError | None]:
    """Returns the checkpoint, with filled live tensors, or the error, the same on all ranks."""
    loaded, error = _patiently(storage, info, ranks, partial(read, storage, info, ranks, state))
    if loaded is not None:
        _, failure = tried(partial(compare, loaded, state))
        ranks.agree(failure)
        if loaded.flat is not None:
            _, error = _patiently(storage, info, ranks, loaded.flat.fill)
            choice.is_partly_filled |= error is not None
    if error is None:
        return loaded, None
    choice.skipped.append(str(error) if isinstance(error, DamagedError) else f"{info.name}: {error}")
    if ranks.rank == 0:
        _log.warning("checkpoint skipped: %s", choice.skipped[-1])
    return None, error


def _patiently(
    storage: Storage, info: CheckpointInfo, ranks: RankGroup, work: Callable[[], T]
) -> tuple[T | None, CheckpointError | None]:
    """Returns the result of `work` or its error, the same on all ranks. Repeats `work` after an error of the storage.
    Raises LostContact."""
    for last in _tries(storage):
        try:
            return work(), None
        except LostContact:
            raise
        except CheckpointError as error:
            if last or type(error) is not CheckpointError:
                return None, error
            if ranks.rank == 0:
                _log.warning("%s: %s. Reading it again.", info.name, str(error).rstrip("."))
    raise AssertionError("the last try has returned")


def _tries(storage: Storage) -> Iterator[bool]:
    """Yields, for each try, whether this try is the last one. Pauses between the tries."""
    for pause in PAUSES_S[:2] if storage.is_divided else PAUSES_S if storage.rereads else ():
        yield False
        time.sleep(pause)
    yield True
