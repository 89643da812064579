"""The random generators that a user's object keeps: torch's, numpy's and Python's, found without running its code."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

DEEP, LONG, MANY = 8, 64, 4096  # limits of a search: nested objects, elements of a container, and objects in all
_PLAIN = (str, bytes, int, float, type(None), tuple, Enum)  # keys of dicts that are names: others may be long
PARTS = ("generator", "sampler", "batch_sampler", "dataset", "collate_fn")  # of a DataLoader
_GLOBAL = (torch.default_generator, random.random.__self__, numpy.random.mtrand._rand)  # type: ignore[attr-defined]
_KINDS = (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState)
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "clusterdp"}  # of their objects, only generators count
_frozen: list[weakref.ref[Any]] = []
_LEAVES = (str, bytes, int, float, type(None), torch.Tensor, numpy.ndarray, type, ModuleType)


def generators_of(holder: Any) -> dict[str, Any]:
    """Returns the generators to which an object refers, by their place in it, without the global ones. No code of the
    object is run."""
    found = [(name, thing) for name, thing in reached(holder, far=True) if is_generator(thing)]
    return {**dict(found), **dict(reversed(found))}  # the nearest of a name, in the order of the search


def living(*wanted: type) -> list[Any]:
    """Returns all objects of some classes, written in Python, that the garbage collector knows: they refer to their
    classes.

    gc.get_objects() would also return the tuples that other threads are filling. While somebody else holds such a
    tuple, CPython raises SystemError in that thread."""
    kinds = [*wanted]
    for kind in kinds:  # grows
        kinds += type.__subclasses__(kind)
    things = [*gc.get_referrers(*kinds), *(thing for ref in _frozen if (thing := ref()) is not None)]
    known = {*kinds}
    return [thing for thing in things if type(thing) in known]


def note_before_freeze() -> None:
    """After a following gc.freeze(), living() still finds the optimizers, schedulers and models in DDP of before."""
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    _frozen[:] = map(weakref.ref, living(Optimizer, LRScheduler, DistributedDataParallel))


def is_a(thing: Any, kinds: type | tuple[type, ...]) -> bool:
    """isinstance(...) for an object of the program, whose `__class__` may be a property that fails, or a mock's."""
    return issubclass(type(thing), kinds)


def module_of(kind: Any) -> str:
    """Returns the module of a class or function, without its metaclass, which may fail."""
    return str(type.__dict__["__module__"].__get__(kind) if isinstance(kind, type) else kind.__module__)


def reached(holder: Any, *, far: bool = False) -> Iterator[tuple[str, Any]]:
    """Yields the objects to which an object refers, each once, the nearest first. far: also those that its code names,
    in its classes, in the globals of its functions, and in modules."""
    seen, kinds, level = set[int](), set[type](), [("", holder)]
    for _ in range(DEEP):
        below = list[tuple[str, Any]]()
        for name, thing in level:
            if is_a(thing, _LEAVES) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield name, thing
            if len(seen) == MANY:
                return
            held = parts(thing, kinds, far=far)
            new = ((key, part) for key, part in held if not is_a(part, _LEAVES) and id(part) not in seen)
            below += [(f"{name}.{key}".lstrip("."), part) for key, part in islice(new, MANY - len(below))]
        level = below


def parts(thing: Any, kinds: set[type], *, far: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yields what an object holds. kinds: the classes whose functions have been yielded; it is added to. far: as of
    reached()."""
    if is_a(thing, dict):
        pairs = enumerate(islice(dict.items(thing), LONG))
        yield from ((key if is_a(key, _PLAIN) else number, part) for number, (key, part) in pairs)
    elif rows := [kind for kind in (list, tuple, deque) if is_a(thing, kind)]:
        yield from enumerate(islice(rows[0].__iter__(thing), LONG))
    elif type(thing) is FunctionType:
        yield from enumerate((*(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()))
        yield from _named(thing) if far else ()
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            with suppress(ValueError):  # the cell is empty
                yield name, cell.cell_contents
    elif type(thing) is MethodType:
        yield from (("self", thing.__self__), ("function", thing.__func__))
    elif is_a(thing, partial):
        yield from (("function", thing.func), *enumerate(thing.args), *thing.keywords.items())
    else:
        own = None
        with suppress(Exception):  # a class may have a property of this name
            own = object.__getattribute__(thing, "__dict__")
        if type(own) is dict and not is_a(thing, Mapping):
            names = PARTS if is_a(thing, DataLoader) else tuple(islice(own, MANY))
            yield from ((name, own[name]) for name in names if name in own)
        for kind in type(thing).__mro__:
            if module_of(kind).partition(".")[0] not in ("torch", "builtins", "typing", "abc"):
                yield from _of_class(thing, kind, kinds, far)


def _of_class(thing: Any, kind: type, kinds: set[type], far: bool) -> Iterator[tuple[str, Any]]:
    """Yields what the slots of a class hold, and once its functions and, if far, its attributes."""
    for name, each in list(vars(kind).items()):
        if type(each) is MemberDescriptorType:
            with suppress(AttributeError):  # the slot is empty
                yield name, each.__get__(thing)
        elif kind in kinds:
            continue
        elif is_a(each, (FunctionType, classmethod, staticmethod, property)):
            yield name, getattr(each, "fget", getattr(each, "__func__", each))
        elif far and _is_followed(each):
            yield name, each
    kinds.add(kind)


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the globals that a function names, and what it names in modules and classes."""
    codes, space = [function.__code__], function.__globals__
    for code in codes:  # grows: before Python 3.12, comprehensions have code of their own
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
    names = dict.fromkeys(name for code in codes for name in code.co_names)
    spaces = [space, *(vars(each) for name in names if is_a(each := space.get(name), (ModuleType, type)))]
    is_own = "-packages" not in function.__code__.co_filename and _is_followed(function)
    places = ((at, each, name) for at, each in enumerate(spaces) for name in names if name in each)
    found = ((f"{at}.{name}" if at else name, each[name]) for at, each, name in places)
    return ((name, each) for name, each in found if is_generator(each) or (is_own and _is_followed(each)))


def _is_followed(thing: Any) -> bool:
    """Returns whether a global or a class's attribute may lead to generators: a search through libraries takes long."""
    kind = thing if type(thing) is FunctionType else type(thing)
    return is_a(thing, (dict, list, tuple, partial)) or is_generator(thing) or not is_library(kind)


def is_library(kind: Any) -> bool:
    """Returns whether a class or function is of Python, torch, numpy or clusterdp."""
    return module_of(kind).partition(".")[0] in _LIBRARIES


def is_ours(module: Any) -> bool:
    """Returns whether a module of this name is a part of clusterdp, and no program."""
    return str(module).startswith("clusterdp.") and str(module).split(".")[1] not in ("configs", "recipes")


def is_program(module: Any) -> bool:
    """Returns whether a module of this name is the program's own, and no library."""
    file = getattr(sys.modules.get(str(module)), "__file__", None)
    is_of_python = str(module).partition(".")[0] in sys.stdlib_module_names
    return file is not None and "-packages" not in file and not is_ours(module) and not is_of_python


def is_written_here(kind: type) -> bool:
    """Returns whether the program has written a class whose objects have attributes."""
    if not is_program(module_of(kind)):
        return False
    own = [vars(each)["__dict__"] for each in kind.__mro__ if "__dict__" in vars(each)]  # may be a property
    return bool(own) and all(type(each) is GetSetDescriptorType for each in own)


def is_generator(thing: Any) -> bool:
    """Returns whether a thing is a generator of random numbers, but not a global one."""
    if not is_a(thing, _KINDS) or is_a(thing, random.SystemRandom):
        return False
    return not any(thing is one for one in (*_GLOBAL, *torch.cuda.default_generators))


def states_of(generators: Mapping[str, Any]) -> dict[str, Any]:
    states = {}
    for name, generator in generators.items():
        with suppress(NotImplementedError):  # a class of the program that draws from elsewhere, as SystemRandom
            states[name] = _state_of(generator)
    return states


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
