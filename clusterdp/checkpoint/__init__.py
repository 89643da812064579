"""Checkpoints that cannot be lost, and resume that is exact; see Checkpointer. Names load when they are first used:
layout, manifest and some others need no torch, and login nodes read checkpoints without it.

    layout        what is on disk: names, the flat buffer, slices, checksums       torch-free
    manifest      the file that is the checkpoint; list_checkpoints()              torch-free
    phase         a part of a run that has a state of its own                      torch-free
    strictjson    JSON as we write it                                              torch-free
    retention     which checkpoints go, and how                                    torch-free
    blocks        verified reads                                                   torch-free
    chunks        where the pieces of sharded tensors lie                          torch-free
    strides       how tensors lie in memory                                        torch-free
    skeleton      a state without its tensors, as JSON                             torch-free
    payload       the bytes of a tensor, wherever they lie                         torch-free
    tree          nested state <-> JSON and tensors
    objects       what is taken from modules, optimizers, ... and how it is put back
    built         what the program built before training changed it
    buffers       those of modules
    fit           where an object is not what was saved
    rng           the random number generators of a rank
    ranks         the point where all ranks agree
    snapshot      the state of all ranks at one moment
    writer        one rank's files
    saving        one save on its way, from the copy to the commit
    replicas      whether the ranks still have the same state
    commit        rank 0: manifest last, retention after
    reader        what blocks read, as tensors
    difference    by how much two tensors differ
    sharded       the pieces of FSDP2's tensors, copied as torch.distributed.checkpoint plans it
    resharding    state of which each rank needs another part than it has saved
    foreign       what other programs have saved, read without running it
    libraries     what Hugging Face, accelerate and Lightning have saved
    migration     a start from that
    restoring     all ranks read one checkpoint
    checkpointer  the whole
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterdp.checkpoint.checkpointer import Checkpointer
    from clusterdp.checkpoint.errors import ClaimLost, LostContact
    from clusterdp.checkpoint.format.manifest import CheckpointInfo, list_checkpoints
    from clusterdp.checkpoint.load.restore import Restored
    from clusterdp.checkpoint.save.save import Commit
    from clusterdp.errors import CheckpointError, DamagedError, StateError

_HOMES = {
    "Checkpointer": "clusterdp.checkpoint.checkpointer",
    "Commit": "clusterdp.checkpoint.save.save",
    "Restored": "clusterdp.checkpoint.load.restore",
    "ClaimLost": "clusterdp.checkpoint.errors",
    "LostContact": "clusterdp.checkpoint.errors",
    "CheckpointInfo": "clusterdp.checkpoint.format.manifest",
    "list_checkpoints": "clusterdp.checkpoint.format.manifest",
    "CheckpointError": "clusterdp.errors",
    "DamagedError": "clusterdp.errors",
    "StateError": "clusterdp.errors",
}
__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "ClaimLost",
    "Commit",
    "DamagedError",
    "LostContact",
    "Restored",
    "StateError",
    "list_checkpoints",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
