"""Marks: short digests of a state, of the random streams and of a loader's generators, which show whether two attempts
have the same.

A mark of a tensor is a checksum of its first values, and these values' beginning: 1 µs for each tensor. Values on a GPU
are copied to the host while the training continues, and are read later.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import string_at
from functools import cache
from itertools import islice
from typing import Any
from zlib import crc32

import torch

from clusterdp.checkpoint.state import plain_holders, stateful
from clusterdp.checkpoint.state.generators import generators_of, is_written_here, reached, states_of
from clusterdp.checkpoint.state.tree import is_sharded, key_of, memory_of
from clusterdp.train.witness.verdict import NUMBER

VALUES = 64  # values of a tensor that are read
HEAD = 16  # bytes of a tensor whose values are kept, to see by how much they differ
LONG = 64  # elements of a list of plain values that have a mark each; of a longer one, the ends are read
DEEP = 16  # nested levels of a state that are followed


# A checksum of the values; the first bytes of a tensor or a float, and their dtype, else empty. A plain tuple, for a
# state has thousands.
Mark = tuple[int, bytes, str]


class StateMarks:
    """The marks of a state at one moment: {name: Mark}, with names as in a checkpoint."""

    def __init__(self, state: Mapping[str, Any]):
        """state: as Checkpointer has it. Parts that cannot be read have no marks."""
        self._parts = [key_of(name) for name in state]
        self._found: dict[str, Mark] = {}
        on_gpu: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
        with suppress(Exception), stateful.as_trained(state):  # never ends a training: the next save says what is wrong
            for name, thing in state.items():
                try:
                    _collect(thing.state_dict(), key_of(name), self._found, on_gpu, DEEP, _kind_of_numbers(thing))
                except Exception:
                    self._found[key_of(name)] = (0, b"", "")
        self._coming = [_Coming(tensors) for tensors in on_gpu.values()]

    def ready(self) -> Mapping[str, Mark]:
        """Returns the marks that are known: all, but those of a GPU that has not reached this moment."""
        if self._coming and all(coming.is_here() for coming in self._coming):
            for coming in self._coming:
                self._found |= coming.marks()
            self._coming = []
        return self._found

    def sums(self) -> dict[str, int]:
        """Returns a sum for each part of the state, independent of the order of names; 0 if it is not known."""
        sums = dict.fromkeys(self._parts, 0)
        for name, mark in self.ready().items():
            sums[name.partition("/")[0]] += crc32(name.encode(), mark[0])
        return {part: 0 if self._coming else total & 0x7FFFFFFF for part, total in sums.items()}


def of(mark: Callable[..., int], *args: Any) -> int:
    """Returns mark(*args); 0, which is compared with nothing, if the program's values cannot be read."""
    try:
        return mark(*args)
    except Exception:
        return 0


def _kind_of_numbers(thing: Any) -> str:
    """Returns how the floats of a part of the state are compared: those of a plain dict may be clocks."""
    return NUMBER if isinstance(thing, plain_holders.DictHolder) else "float64"


def _collect(
    value: Any,
    key: str,
    found: dict[str, Mark],
    on_gpu: dict[torch.device, list[tuple[str, torch.Tensor]]],
    depth: int,
    numbers: str,
) -> None:
    if isinstance(value, torch.Tensor):
        if is_sharded(value):
            value = value.to_local()  # type: ignore[attr-defined]
        if value.is_cuda:
            on_gpu.setdefault(value.device, []).append((key, value))
        else:
            found[key] = _of_tensor(value)
    elif isinstance(value, Mapping) and depth:
        for word, item in value.items():
            _collect(item, f"{key}/{word}", found, on_gpu, depth - 1, numbers)
    elif isinstance(value, (list, tuple, deque)) and depth:
        for number, item in _some_of(value, key, found):
            _collect(item, f"{key}/{number}", found, on_gpu, depth - 1, numbers)
    elif (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.ndarray):
        found[key] = crc32(value.flat[:VALUES].tobytes()), b"", ""
    elif type(value) is float:
        data = struct.pack("<d", value)
        found[key] = crc32(data), data, numbers
    elif not isinstance(value, torch.device):  # a rank's GPU may have another number
        found[key] = _of_text(repr(value))


def _some_of(values: Sequence[Any], key: str, found: dict[str, Mark]) -> Iterable[tuple[int, Any]]:
    """Returns the numbered values that have marks of their own. A long list has a mark itself, and only its ends are
    read, because a history of 100,000 steps would take a second."""
    if len(values) <= LONG or isinstance(values[0], torch.Tensor):
        return enumerate(values)
    backwards = zip(range(len(values) - 1, 0, -1), reversed(values), strict=False)
    ends = [*islice(enumerate(values), LONG), *islice(backwards, LONG)]
    plain = not any(isinstance(item, (torch.Tensor, Mapping, list, tuple, deque)) for _, item in ends)
    found[key] = _of_text(repr((len(values), *(ends if plain else ()))))
    return () if plain else ends


def _first(tensor: torch.Tensor) -> torch.Tensor:
    """Returns up to VALUES values of a tensor, in one dimension, without a copy of the rest."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    while tensor.dim() > 1 and not tensor.is_contiguous():
        tensor = tensor[0]
    return tensor.reshape(-1)[:VALUES]


def _of_tensor(tensor: torch.Tensor) -> Mark:
    if tensor.layout != torch.strided or not (numel := tensor.numel()) or tensor.is_meta or tensor.is_quantized:
        return _of_text(repr(tuple(tensor.shape)))
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
        tensor = _first(tensor).resolve_conj().resolve_neg().contiguous()
        numel = tensor.numel()
    dtype = tensor.dtype
    return _of_bytes(string_at(tensor.data_ptr(), (numel if numel < VALUES else VALUES) * dtype.itemsize), dtype)


def _of_bytes(values: bytes, dtype: torch.dtype) -> Mark:
    return crc32(values), values[:HEAD], _name_of(dtype)


def _of_text(text: str) -> Mark:
    return crc32(text.encode(errors="replace")), b"", ""


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Coming:
    """Values that are copied from a GPU."""

    def __init__(self, tensors: list[tuple[str, torch.Tensor]]):
        firsts = [(name, _first(tensor)) for name, tensor in tensors]
        self._names = [(name, first.numel(), first.dtype) for name, first in firsts]
        whole = torch.cat([first.contiguous().view(torch.uint8) for _, first in firsts])
        self._host = torch.empty(whole.shape, dtype=torch.uint8, pin_memory=True)
        self._host.copy_(whole, non_blocking=True)
        self._event = torch.cuda.current_stream(whole.device).record_event()

    def is_here(self) -> bool:
        return bool(self._event.query())

    def marks(self) -> dict[str, Mark]:
        values, found, start = self._host.numpy().tobytes(), {}, 0
        for name, count, dtype in self._names:
            end = start + count * dtype.itemsize
            found[name] = _of_bytes(values[start:end], dtype)
            start = end
        return found


def of_streams() -> int:
    """Returns a digest of the random streams of this rank, 60 µs."""
    words, spare = random.getstate()[1:]
    digest = crc32(array("I", words), crc32(repr(spare).encode()))
    digest = crc32(memory_of(torch.get_rng_state()), digest)
    if numpy := sys.modules.get("numpy"):
        state = numpy.random.get_state(legacy=False)
        keys = state["state"].pop("key", b"")  # an array, of the usual bit generator
        digest = crc32(keys, crc32(repr(state).encode(), digest))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        digest = crc32(memory_of(torch.cuda.get_rng_state()), digest)
    return digest


def of_generators(loader: Any) -> dict[str, int]:
    """Returns the marks of the generators that a loader, its samplers and its data set hold, by their places."""
    states = states_of(generators_of(loader))
    return {name: crc32(_data_of(state)) for name, state in states.items()}


def numbers_of(loader: Any) -> dict[str, float]:
    """Returns the numbers among the attributes of a loader's parts that the program has written, by their places."""
    found = dict[str, float]()
    for path, thing in reached(loader):
        if path and is_written_here(type(thing)):
            own = object.__getattribute__(thing, "__dict__").items()
            found |= {f"{path}.{key}": part for key, part in own if type(part) in (int, float)}
    return found


def _data_of(state: Any) -> bytes:
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else repr(state).encode()
