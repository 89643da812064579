"""Seeds, replaces and restores the CPU's global random streams: Python's, torch's, and numpy's if it is loaded. Also
seeds the generators of an object."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import get_worker_info

from clusterdp.checkpoint.state.generators import kept

APART = 1  # makes a loader's random numbers differ from the training's


def mixed_seed(*numbers: int) -> int:
    """Mixes the numbers into 64 bits (splitmix64): neighbouring seeds, epochs or indices give unrelated results."""
    x = 0
    for number in numbers:
        x = x + number + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 31
    return x


def seed_streams(seed: int) -> None:
    """Seeds the streams from 64 bits, without torch.manual_seed(), which is slow and seeds CUDA, too.

    torch and numpy use 32 bits of a seed and the same algorithm. If both got the same 32 bits, both would draw the same
    numbers.
    """
    random.seed(seed)
    torch.default_generator.manual_seed(seed & 0xFFFFFFFF)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed >> 32)


@contextmanager
def seeded(generators: Mapping[str, Any], seed: int) -> Iterator[None]:
    """Seeds the generators for the with block, and restores them after it."""
    with kept(generators):
        for number, generator in enumerate(generators.values()):
            own = mixed_seed(seed, number) if number else seed
            if isinstance(generator, torch.Generator):
                generator.manual_seed(own)
            elif hasattr(generator, "bit_generator"):
                generator.bit_generator.state = type(generator.bit_generator)(own).state
            else:  # numpy's RandomState accepts 32 bits
                generator.seed(own if isinstance(generator, random.Random) else own & 0xFFFFFFFF)
        yield


_scratch: list[Streams] = []  # streams that are not in use at the moment


@contextmanager
def scratch_streams() -> Iterator[None]:
    """Replaces the global streams within a with block, which begins with seed_streams(). Replacing and restoring takes
    9 µs here, and 80 µs with rng.kept(). In a worker the global streams stay, because nothing else uses them.
    """
    if get_worker_info() is not None:
        yield
        return
    streams = _scratch.pop() if _scratch else Streams()
    with streams:
        yield
    _scratch.append(streams)


class OwnStreams:
    """Separate streams for a loader's random numbers in the training process. Before begin() is called, a with block
    has no effect.

        streams.begin()                 # once the iterator exists
        with streams:
            batch = next(iterator)      # a shuffle buffer, a sampler that draws as it goes

    On resume, a loader that does not keep its position is read again from the start. If the loader shared a stream with
    dropout, the loader would then draw other numbers: in a test with 80 samples, 6 came twice and 6 not at all.
    """

    def __init__(self) -> None:
        self._streams: Streams | None = None

    def begin(self) -> None:
        """Seeds these streams from the global ones, which do not change."""
        before = torch.default_generator.get_state()
        number = int(torch.empty((), dtype=torch.int64).random_())
        torch.default_generator.set_state(before)
        self._streams = Streams()
        with self._streams:
            seed_streams(mixed_seed(number, APART))

    def end(self) -> None:
        self._streams = None

    def __enter__(self) -> None:
        if self._streams is not None:
            self._streams.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._streams is not None:
            self._streams.__exit__(kind, error, at)


class Streams:
    """Streams that replace the global streams within a with block, and continue in the next one. Seed the streams in
    the first block."""

    def __init__(self) -> None:
        self._global, self._these = StreamState(), StreamState()
        self._these.take()
        self._these.part()

    def __enter__(self) -> None:
        self._global.take()
        self._these.put()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._these.take()
        self._global.put()


class StreamState:
    """The state of the global streams: take() copies the present state, and put() restores this copy.

    random.getstate() and numpy's get_state() create 625 integers each: saving and restoring with them takes 80 µs.
    StreamState takes 9 µs: it copies the memory of Python's generator, and gives numpy.random another bit generator.
    With a new bit generator, numpy drops its spare normal number (numpy draws normal numbers in pairs), which
    StreamState therefore saves. _NO_BITS replaces the bit generator while the spare number is read or set.
    """

    def __init__(self) -> None:
        self._twister = _twister()
        self._python: Any = ctypes.create_string_buffer(self._twister[1]) if self._twister is not None else None
        self._gauss: float | None = None  # the spare number of random.gauss()
        self._torch: Any = None
        self._numpy: Any = sys.modules.get("numpy")  # numpy is known from the beginning, because torch imports it
        self._switches = self._numpy is not None and _can_switch()
        self._bits: Any = None  # numpy's bit generator, or the whole result of numpy's get_state()
        self._spare: dict[str, Any] = {}

    def take(self) -> None:
        if self._twister is not None:
            ctypes.memmove(self._python, *self._twister)
            self._gauss = _SHARED.gauss_next
        else:
            self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        if self._switches:
            shared = self._numpy.random.mtrand._rand
            self._bits, self._spare = shared._bit_generator, _spare_of(shared)
        elif self._numpy is not None:
            self._bits = self._numpy.random.get_state(legacy=False)

    def put(self) -> None:
        if self._twister is not None:
            ctypes.memmove(self._twister[0], self._python, self._twister[1])
            _SHARED.gauss_next = self._gauss
        else:
            random.setstate(self._python)
        torch.default_generator.set_state(self._torch)
        if self._switches:
            self._numpy.random.set_bit_generator(self._bits)
            if self._spare["has_gauss"]:
                _set_spare(self._numpy.random.mtrand._rand, self._spare)
        elif self._numpy is not None:
            self._numpy.random.set_state(self._bits)

    def part(self) -> None:
        """Gives this state its own bit generator, not seeded. Call part() after take()."""
        if self._switches:
            self._bits = self._numpy.random.MT19937()


_SHARED: Any = random.random.__self__  # type: ignore[attr-defined]  # the generator of random's functions


@cache
def _twister() -> tuple[int, int] | None:
    """Returns address and size in bytes of the generator's state, an int and 624 words in CPython's _random.Random;
    None if memory does not have this layout."""
    if sys.implementation.name != "cpython":
        return None
    *words, index = _SHARED.getstate()[1]
    wanted = struct.pack(f"=i{len(words)}I", index, *words)
    at = ctypes.string_at(id(_SHARED), type(_SHARED).__basicsize__).find(wanted)
    return (id(_SHARED) + at, len(wanted)) if at > 0 else None


class _NoBits:
    """Stands in for numpy's bit generator, so that get_state() and set_state() handle only the spare number."""

    state = property(lambda self: {"bit_generator": "MT19937", "state": None}, lambda self, value: None)


_NO_BITS = _NoBits()


def _spare_of(shared: Any) -> dict[str, Any]:
    bits = shared._bit_generator
    try:
        shared._bit_generator = _NO_BITS
        spare: dict[str, Any] = shared.get_state(legacy=False)
        return spare
    finally:
        shared._bit_generator = bits


def _set_spare(shared: Any, spare: dict[str, Any]) -> None:
    bits = shared._bit_generator
    try:
        shared._bit_generator = _NO_BITS
        shared.set_state(spare)
    finally:
        shared._bit_generator = bits


@cache
def _can_switch() -> bool:
    """Returns whether this numpy has set_bit_generator() (since 1.24), and handles the spare number through _NoBits."""
    import numpy

    if not hasattr(numpy.random, "set_bit_generator"):
        return False
    shared: Any = numpy.random.mtrand._rand
    before, bits = numpy.random.get_state(legacy=False), shared._bit_generator
    try:
        numpy.random.seed(1)
        expected = numpy.random.standard_normal(2)[1]
        numpy.random.seed(1)
        numpy.random.standard_normal()
        spare = _spare_of(shared)
        numpy.random.set_bit_generator(bits)  # this call drops the spare number
        _set_spare(shared, spare)
        return bool(numpy.random.standard_normal() == expected)
    except Exception:
        return False
    finally:
        numpy.random.set_bit_generator(bits)
        numpy.random.set_state(before)
