"""Plain values: numbers, strings, tensors, arrays, and lists and dicts of these, copied and compared within limits."""

from __future__ import annotations

import os
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_map

from clusterdp.checkpoint.state.tree import Flattener
from clusterdp.errors import StateError

MOST_BYTES = 16 << 20  # limit of all tensors and arrays of an epoch
MOST_ITEMS = 50_000  # limit of its numbers, and of all that lists hold
_CONTAINERS = (list, tuple, deque)
_DICTS = (dict, OrderedDict, Counter, defaultdict)


def copied(value: Any, memory: Collection[int], left: list[int]) -> Any:
    """Returns a copy of plain values. memory: addresses of what the state holds, of which a copy would be another
    tensor. left: how many items and bytes may come. Raises StateError for all else."""
    for leaf in _leaves(value, left):
        if not _is_plain(leaf, memory, left):
            raise StateError("not plain")
    copy = tree_map(_copied_leaf, dict(value) if type(value) is defaultdict else value)
    Flattener().flatten(copy, "variable")
    return copy


def _leaves(value: Any, left: list[int]) -> Iterator[Any]:
    """Yields the values in lists and dicts. Raises StateError once left[0] have come."""
    waiting = [iter((value,))]
    while waiting:
        for item in waiting[-1]:
            left[0] -= 1
            if left[0] < 0 or len(waiting) > 20:
                raise StateError("too long")
            if type(item) in (*_CONTAINERS, *_DICTS):
                waiting.append(iter(list(item.values() if isinstance(item, dict) else item)))
                break
            yield item
        else:
            waiting.pop()


def _is_plain(leaf: Any, memory: Collection[int], left: list[int]) -> bool:
    if type(leaf) is torch.Tensor:
        is_trained = leaf.is_leaf and leaf.requires_grad
        if leaf.is_nested or leaf.layout != torch.strided or leaf.device.type == "meta" or is_trained:
            return False
        left[1] -= leaf.nbytes
        return left[1] >= 0 and address(leaf) not in memory
    if isinstance(leaf, (numpy.generic, numpy.ndarray)):
        left[1] -= leaf.nbytes
        return leaf.dtype.kind in "biufc" and left[1] >= 0
    is_path = type(leaf) is str and os.sep in leaf  # of this process, perhaps
    return leaf is None or isinstance(leaf, Enum) or (type(leaf) in (bool, int, float, str) and not is_path)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def is_plain_tensor(thing: Any) -> bool:
    """Returns whether a thing is a tensor that has an address."""
    if type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout != torch.strided:
        return False
    return bool(thing.numel() and thing.device.type != "meta")


def _copied_leaf(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor:
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, (numpy.ndarray, Counter)) else leaf


def on_gpu(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in _leaves(value, [MOST_ITEMS]))


def to_gpu(leaf: Any) -> Any:
    return leaf.cuda() if isinstance(leaf, torch.Tensor) else leaf


def mark(value: Any, memory: Collection[int] = ()) -> Any:
    """Returns what changes if plain values change; of other objects their identity. Never waits for a GPU. memory:
    addresses of tensors that may change."""
    left, found = [MOST_ITEMS, MOST_BYTES], zlib.crc32(b"")
    try:
        for leaf in _leaves(value, left):
            found = zlib.crc32(_bytes(leaf, memory, left), found)
    except StateError:
        return len(value)
    return found, len(value) if type(value) in (*_CONTAINERS, *_DICTS, set) else 0


def _bytes(leaf: Any, memory: Collection[int], left: list[int]) -> bytes:
    if type(leaf) is torch.Tensor:
        is_still = leaf.is_inference() or leaf.is_nested or (memory and address(leaf) in memory)
        return f"{id(leaf)} {0 if is_still else leaf._version}".encode()
    if isinstance(leaf, (numpy.generic, numpy.ndarray)) and leaf.dtype.kind in "biufc":
        left[1] -= leaf.nbytes
        return leaf.tobytes() if left[1] >= 0 else b""
    return repr(leaf if leaf is None or type(leaf) in (bool, int, float, str) else id(leaf)).encode(errors="replace")
