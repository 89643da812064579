"""of_run(): the end state of a run, read from its newest undamaged checkpoint.

Every byte is verified when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.checkpoint.format.layout import TensorEntry
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest, scan
from clusterdp.checkpoint.format.payload import Payload, ShardedPayload, own_payload, shared_payload, whole
from clusterdp.checkpoint.format.skeleton import TENSORS, key_from, plain, tag_of
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.errors import CheckpointError, DamagedError
from clusterdp.rehearse.state.end_state import EndState, Leaf
from clusterdp.rehearse.state.flatten import leaves_of
from clusterdp.rehearse.state.stored import Bytes, Stored
from clusterdp.rundir import RunDir
from clusterdp.storage import Storage, open_storage


def of_run(run: RunDir, checkpoints: Path | None = None) -> EndState | None:
    """Returns the end state of a run, or None if it has no undamaged checkpoint. `checkpoints`: another folder than the
    run's.

    Raises CheckpointError if the folder cannot be read.
    """
    storage = open_storage(checkpoints or run.checkpoints)
    try:
        for info in reversed(scan(storage)[0]):
            try:
                return EndState(_values(storage, info), f"the checkpoint of step {info.step}")
            except DamagedError:
                continue
    except OSError as error:
        raise CheckpointError(f"{storage.url}: cannot be read: {error.strerror or error}. Look at the path.") from None
    return None


def _values(storage: Storage, info: CheckpointInfo) -> dict[str, Leaf]:
    manifest = read_manifest(storage, info)
    # For the digests, shared_payload() reads ahead. Later, ShardedPayload reads only the tensors that differ.
    again = ShardedPayload(storage, manifest)
    with shared_payload(storage, manifest) as payload:
        tensors = {e.name: _stored(payload, e, partial(_whole, again, e)) for e in payload.entries}
    trees = {"step": info.step, "meta": manifest.meta, "changed": manifest.changed or {}, **manifest.state}
    values = leaves_of({name: _tree(tree, tensors) for name, tree in trees.items() if tree != {}})
    for rank in range(info.world_size):
        with own_payload(storage, manifest, rank) as (skeleton, payload):
            own = {e.name: _stored(payload, e, partial(_own, storage, manifest, rank, e)) for e in payload.entries}
        tree = _tree(skeleton, own)
        objects = tree.pop("objects")
        objects.pop("loop_variables", None)  # the program's counters may count seconds
        tree.pop("machine", None)  # only names of libraries, not state
        values |= leaves_of({**tree, **objects}, prefix=f"rank{rank}.")
    return values


def _stored(payload: Payload, entry: TensorEntry, read: Callable[[], Bytes]) -> Stored:
    return Stored(entry.dtype, entry.shape, read, checksum(*payload.read(entry)))


def _whole(payload: Payload, entry: TensorEntry) -> Bytes:
    return np.frombuffer(whole(payload, entry), np.uint8)


def _own(storage: Storage, manifest: Manifest, rank: int, entry: TensorEntry) -> Bytes:
    with own_payload(storage, manifest, rank) as (_, payload):
        return _whole(payload, entry)


def _tree(skeleton: Any, tensors: Mapping[str, Stored]) -> Any:
    """Returns the tree that was saved, with a Stored in place of each tensor."""
    tag = tag_of(skeleton)
    if isinstance(skeleton, list):
        return [_tree(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if tag is None:
        return {key: _tree(item, tensors) for key, item in skeleton.items()}
    if tag in TENSORS:
        return tensors[skeleton[tag]]
    if tag == "$dict":
        return {key_from(key): _tree(item, tensors) for key, item in skeleton[tag]}
    return plain(skeleton) if tag in ("$float", "$int") else _tree(skeleton[tag], tensors)
