"""Checkpoints of a training: saved by all ranks together, verified when they are read, restored exactly.

A Checkpointer saves and restores: save() returns a Commit, restore() a Restored. PerRank marks state that differs
between ranks. `list_checkpoints` returns a CheckpointInfo for each checkpoint in a folder or at a URL, without torch.
Each public name is imported at its first use.

    format/       a checkpoint on disk, and verified reads of it; needs no torch
    state/        the state of a training in objects and in tensors, and how ranks agree on it
    save/         from the live objects to a committed checkpoint
    load/         from a checkpoint, or from another program's files, into the objects
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.checkpoint.checkpointer import Checkpointer as Checkpointer
    from clusterdp.checkpoint.errors import ClaimLost as ClaimLost
    from clusterdp.checkpoint.errors import LostContact as LostContact
    from clusterdp.checkpoint.format.manifest import CheckpointInfo as CheckpointInfo
    from clusterdp.checkpoint.format.manifest import list_checkpoints as list_checkpoints
    from clusterdp.checkpoint.load.restore import Restored as Restored
    from clusterdp.checkpoint.save.save import Commit as Commit
    from clusterdp.checkpoint.state.plain_holders import PerRank as PerRank
    from clusterdp.errors import CheckpointError as CheckpointError
    from clusterdp.errors import DamagedError as DamagedError
    from clusterdp.errors import StateError as StateError

_HOMES = {
    "Checkpointer": "clusterdp.checkpoint.checkpointer",
    "Commit": "clusterdp.checkpoint.save.save",
    "Restored": "clusterdp.checkpoint.load.restore",
    "PerRank": "clusterdp.checkpoint.state.plain_holders",
    "ClaimLost": "clusterdp.checkpoint.errors",
    "LostContact": "clusterdp.checkpoint.errors",
    "CheckpointInfo": "clusterdp.checkpoint.format.manifest",
    "list_checkpoints": "clusterdp.checkpoint.format.manifest",
    "CheckpointError": "clusterdp.errors",
    "DamagedError": "clusterdp.errors",
    "StateError": "clusterdp.errors",
}


if not TYPE_CHECKING:
    __all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
