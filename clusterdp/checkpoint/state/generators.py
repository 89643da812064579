"""The random generators that a user's object keeps: torch's, numpy's and Python's, found without running its code."""

from __future__ import annotations

import gc
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

DEEP, LONG, MANY = 8, 64, 4096  # limits of a search: nested objects, elements of a container, and objects in all
PARTS = ("generator", "sampler", "batch_sampler", "dataset", "collate_fn")  # of a DataLoader
_GLOBAL = (torch.default_generator, random.random.__self__, numpy.random.mtrand._rand)  # type: ignore[attr-defined]
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "clusterdp"}  # of their objects, only generators count
_LEAVES = (str, bytes, int, float, type(None), torch.Tensor, numpy.ndarray, type, ModuleType)


def generators_of(holder: Any) -> dict[str, Any]:
    """Returns the generators to which an object refers, by their place in it, without the global ones. No code of the
    object is run."""
    found = [(name, thing) for name, thing in reached(holder, far=True) if is_generator(thing)]
    return {**dict(found), **dict(reversed(found))}  # the nearest of a name, in the order of the search


def living(kind: type) -> list[Any]:
    """Returns all objects of a class that the garbage collector knows. Each class is asked once, because the bases of
    300,000 objects take 100 ms."""
    things = gc.get_objects()
    kinds = {cls for cls in set(map(type, things)) if issubclass(cls, kind)}
    return [thing for thing in things if type(thing) in kinds]


def reached(holder: Any, *, far: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields the objects to which an object refers, each once, the nearest first. far: also those that its code names,
    in its classes, in the globals of its functions, and in modules."""
    seen, level = set[int](), [("", holder)]
    for _ in range(DEEP):
        below = list[tuple[str, Any]]()
        for name, thing in level:
            if isinstance(thing, _LEAVES) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield name, thing
            if len(seen) == MANY:
                return
            below += [(f"{name}.{key}".lstrip("."), part) for key, part in _parts(thing, far)]
        level = below


def _parts(thing: Any, far: bool) -> Iterator[tuple[Any, Any]]:
    if isinstance(thing, dict):
        yield from islice(dict.items(thing), LONG)
    elif kinds := [kind for kind in (list, tuple, deque) if isinstance(thing, kind)]:
        yield from enumerate(islice(kinds[0].__iter__(thing), LONG))
    elif isinstance(thing, FunctionType):
        yield from enumerate((*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()))
        yield from _named(thing) if far else ()
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            with suppress(ValueError):  # the cell is empty
                yield name, cell.cell_contents
    elif isinstance(thing, MethodType):
        yield from (("self", thing.__self__), ("function", thing.__func__))
    elif isinstance(thing, partial):
        yield from (("function", thing.func), *enumerate(thing.args), *thing.keywords.items())
    else:
        own = getattr(thing, "__dict__", None) if not isinstance(thing, Mapping) else None
        names = PARTS if isinstance(thing, DataLoader) else own or ()
        yield from ((name, own[name]) for name in names if own and name in own)
        for kind in type(thing).__mro__:
            if kind.__module__.partition(".")[0] not in ("torch", "builtins", "typing", "abc"):
                for name, each in vars(kind).items():
                    if isinstance(each, MemberDescriptorType):
                        with suppress(AttributeError):  # the slot is empty
                            yield name, each.__get__(thing)
                    elif isinstance(each, (FunctionType, classmethod, staticmethod, property)):
                        yield name, getattr(each, "fget", getattr(each, "__func__", each))
                    elif far and _is_followed(each):
                        yield name, each


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the globals that a function names, and what it names in modules and classes."""
    codes, space = [function.__code__], function.__globals__
    for code in codes:  # grows: before Python 3.12, comprehensions have code of their own
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    spaces = [space, *(vars(each) for name in names if isinstance(each := space.get(name), (ModuleType, type)))]
    is_own = "-packages" not in function.__code__.co_filename and _is_followed(function)
    places = ((at, each, name) for at, each in enumerate(spaces) for name in names if name in each)
    found = ((f"{at}.{name}" if at else name, each[name]) for at, each, name in places)
    return ((name, each) for name, each in found if is_generator(each) or (is_own and _is_followed(each)))


def _is_followed(thing: Any) -> bool:
    """Returns whether a global or a class's attribute may lead to generators: a search through libraries takes long."""
    kind = thing if isinstance(thing, FunctionType) else type(thing)
    root = str(kind.__module__).partition(".")[0]
    return isinstance(thing, (dict, list, tuple, partial)) or is_generator(thing) or root not in _LIBRARIES


def is_generator(thing: Any) -> bool:
    """Returns whether a thing is a generator of random numbers, but not a global one."""
    if isinstance(thing, random.SystemRandom) or any(thing is one for one in _GLOBAL):
        return False
    return isinstance(thing, torch.Generator | random.Random | numpy.random.Generator | numpy.random.RandomState)


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _state_of(generator) for name, generator in generators.items()}


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, numpy.random.Generator) else generator.get_state()


def set_states(generators: Mapping[str, Any], states: Mapping[str, Any]) -> list[str]:
    """Returns the names of the states for which there is no generator of their kind."""
    missing = []
    for name, state in states.items():
        generator = generators.get(name)
        try:
            if isinstance(generator, torch.Generator):
                generator.set_state(state.clone())
            elif isinstance(generator, random.Random):
                generator.setstate(state)
            elif isinstance(generator, numpy.random.Generator):
                generator.bit_generator.state = state
            else:
                generator.set_state(state)  # type: ignore[union-attr]
        except (AttributeError, TypeError, ValueError, RuntimeError):
            missing.append(name)
    return missing


@contextmanager
def kept(generators: Mapping[str, Any]) -> Iterator[None]:
    """Restores the generators after the with block."""
    before = states_of(generators)
    try:
        yield
    finally:
        set_states(generators, before)
