"""A file for `torch.load(..., weights_only=True)`, written by torch.save()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import torch

from clusterdp.checkpoint.format.payload import Payload
from clusterdp.checkpoint.format.skeleton import TENSORS, TensorReference, leaves, tag_of
from clusterdp.checkpoint.state.tree import from_bytes, memory_of, unflatten


def write(file: BinaryIO, state: Any, payload: Payload, advance: Callable[[int], None]) -> None:
    """Writes the file. `state`: see tree()."""
    torch.save(tree(_without_arrays(state), payload, advance), file)


def tree(state: Any, payload: Payload, advance: Callable[[int], None] = lambda nbytes: None) -> Any:
    """Returns the state of a skeleton, whose tensors are all in memory at the same time, as when a file is loaded."""
    wanted = {leaf.name for _, leaf in leaves(state) if isinstance(leaf, TensorReference)}
    tensors: dict[str, torch.Tensor] = {}
    for entry in payload.entries:
        if entry.name in wanted:
            data, at = torch.empty(entry.nbytes, dtype=torch.uint8), 0
            for piece in payload.read(entry):
                memory_of(data)[at : at + len(piece)] = piece
                at += len(piece)
                advance(len(piece))
            tensors[entry.name] = from_bytes(data, entry.dtype, entry.shape)
    return unflatten(state, tensors)


def _without_arrays(skeleton: Any) -> Any:
    """Returns the skeleton with tensors instead of numpy arrays, which weights_only=True refuses."""
    if isinstance(skeleton, list):
        return [_without_arrays(item) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    tag = tag_of(skeleton)
    if tag in TENSORS:
        return {"$tensor": skeleton[tag]}
    return {key: _without_arrays(item) for key, item in skeleton.items()}
