"""Census: what the program's variables reach, beside the state of its loop, and what of it changes.

Watched are random generators; modules, tensors and arrays that are written in place; and objects with a state_dict(),
such as a GradScaler. No code of the program is run, and nothing is copied from a GPU: the versions of tensors show that
they have changed.
"""

from __future__ import annotations

import pickle
import sys
import time
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from clusterdp.checkpoint.state.generators import (
    DEEP,
    MANY,
    is_a,
    is_generator,
    is_library,
    is_ours,
    is_program,
    module_of,
    parts,
    reached,
    states_of,
)
from clusterdp.train.loop.plain_values import address, is_plain_tensor, mark

LONGEST_S = 0.02  # limit of a search, in time of the CPU
MOST_GENERATORS = 64  # limit of the generators that each save looks at
MOST_ARRAY_BYTES = 1 << 20  # a checksum of a longer array takes too long
MOST_OBJECTS = 10_000  # limit of the objects in the state that are searched
_LEAVES = (str, bytes, int, float, type(None), type, ModuleType)
_CONTAINERS = (dict, list, tuple, deque)
_WATCHED_ELSEWHERE = (Optimizer, LRScheduler, DataLoader, Dataset, Sampler)  # or kept with the loader
_OF_AN_OPTIMIZER = ("state", "param_groups")  # attributes with many tensors
_OF_A_MODULE = {*vars(torch.nn.Module())} | {"_flat_weights", "_flat_weight_refs"}
Candidate = tuple[str, Any, Any, Callable[[Any], Any]]  # path, thing, what holds it, and its mark


class Watched:
    """A thing that may change. path: its place in the variables, or that of the list or dict that holds it."""

    def __init__(self, path: str, thing: Any, owner: Any, mark_of: Callable[[Any], Any]):
        self.path, self.kind, self.owner = path, type(thing), id(owner)
        # Strong only to generators, since numpy's have no weak references.
        self._get: Callable[[], Any] = (lambda: thing) if is_generator(thing) else weakref.ref(thing)
        self._mark_of, self._mark, self._seed = mark_of, mark_of(thing), _seed(thing)

    @property
    def thing(self) -> Any:
        """None if the program has dropped it."""
        return self._get()

    def is_changed(self) -> bool:
        """Not if it is a generator that the program has seeded since: it may do so in each step."""
        thing = self.thing
        return thing is not None and _seed(thing) == self._seed and self._mark_of(thing) != self._mark


class Census:
    """state: of the loop, which is left out. loader: of the loop; what it keeps is left out, too."""

    def __init__(self, state: Mapping[str, Any], loader: Any):
        self._state, self._loader = state, loader
        self._watched: dict[int, Watched] = {}

    def add(self, variables: Mapping[str, Any], *, at_begin: bool) -> None:
        """Watches what these variables of the program reach, too. at_begin: whether there was no batch yet: later,
        variables hold the tensors of a batch, which a loader may write in place."""
        known, memory = known_to(self._state)
        modules = {module: vars(module) for module in _modules_beside(variables)}
        spaces = [("", variables), *((f"{module.__name__}.", space) for module, space in modules.items())]
        roots = [(f"{at}{name}", each) for at, space in spaces for name, each in space.items() if name[:2] != "__"]
        roots = [(path, each) for path, each in roots if not _is_ours(each)]
        roots += [(name, each) for name, each in self._state.items() if is_a(each, torch.nn.Module)]
        found, loaders, generators = dict[int, Watched](), [self._loader], 0
        for path, thing, owner, mark_of in _walk(roots, known, memory, time.thread_time() + LONGEST_S):
            if is_a(thing, DataLoader):
                loaders.append(thing)
                continue
            generators += is_generator(thing)
            is_one_of_many = is_generator(thing) and generators > MOST_GENERATORS
            if is_one_of_many or not (at_begin or not is_a(thing, (torch.Tensor, numpy.ndarray))):
                continue
            with suppress(Exception):  # an object of the program
                found[id(thing)] = Watched(path, thing, owner, mark_of)
        ends = time.thread_time() + LONGEST_S
        kept = set[int]()
        for loader in loaders if found else ():
            for _, thing in reached(loader, far=True):
                kept.add(id(thing))
                if time.thread_time() > ends:
                    return  # the loaders may keep any of them
        for key, each in found.items():
            before = self._watched.get(key)
            if not {key, each.owner} & kept and (before is None or before.thing is None):
                self._watched[key] = each

    def end(self) -> None:
        """From now on, watches generators alone: what else changes has changed by now."""
        self._watched = {key: each for key, each in self._watched.items() if is_generator(each.thing)}

    def changed(self) -> list[Watched]:
        return [each for each in self._watched.values() if _is_changed(each)]


def _is_changed(watched: Watched) -> bool:
    with suppress(Exception):  # an object of the program
        return watched.is_changed()
    return False


def _modules_beside(variables: Mapping[str, Any]) -> set[ModuleType]:
    """Returns the program's own modules that its variables name, or whose functions and classes they name."""
    things = [each for each in variables.values() if is_a(each, (ModuleType, FunctionType, type))]
    names = {each.__name__ if is_a(each, ModuleType) else module_of(each) for each in things}
    found = {name: sys.modules.get(name) for name in names - {variables.get("__name__")} if is_program(name)}
    return {module for module in found.values() if module is not None}


def _is_ours(thing: Any) -> bool:
    return is_ours(module_of(type(thing)))


def _walk(roots: list[tuple[str, Any]], known: set[int], memory: set[int], ends: float) -> Iterator[Candidate]:
    """Yields what can be watched, the nearest first, and the DataLoaders."""
    level: list[tuple[str, Any, str, Any]] = [(path, thing, path, None) for path, thing in roots]
    seen, inner, kinds, left = set[int](), set[int](), set[type](), MANY  # inner: parts of a module that is watched
    for _ in range(DEEP):
        below: list[tuple[str, Any, str, Any]] = []
        for path, thing, above, owner in level:
            if is_a(thing, _LEAVES) or id(thing) in seen:
                continue
            if not left or time.thread_time() > ends:
                return
            seen.add(id(thing))
            left -= 1
            is_known, is_module = id(thing) in known, is_a(thing, torch.nn.Module)
            mark_of = None if is_known or id(thing) in inner else _mark_for(thing, memory)
            if mark_of is not None:
                held = is_a(owner, _CONTAINERS) and is_a(thing, (torch.Tensor, numpy.ndarray))
                yield above if held else path, thing, owner, mark_of
            elif is_a(thing, DataLoader):
                yield path, thing, owner, id
            if is_module:
                inner |= {id(each) for each in modules_of(thing)} if mark_of is not None else set()
                pairs = _of_module(thing, whole=id(thing) in inner)
                below += [(f"{path}.{key}", part, path, thing) for key, part in pairs]
            elif not is_known and _is_followed(thing):
                pairs = [*islice(parts(thing, kinds), MANY - len(below))]
                below += [(f"{path}.{key}", part, path, thing) for key, part in pairs]
        level = below


def _is_followed(thing: Any) -> bool:
    """Not into objects of torch or Python, whose tensors may be buffers of their own."""
    if is_a(thing, (torch.Tensor, numpy.ndarray, *_WATCHED_ELSEWHERE)) or is_generator(thing) or _is_ours(thing):
        return False
    usual = (*_CONTAINERS, FunctionType, MethodType, SimpleNamespace)
    return is_a(thing, usual) or type(thing).__name__ == "partial" or not is_library(type(thing))


def _of_module(module: Any, *, whole: bool) -> list[tuple[str, Any]]:
    """Returns what a module holds. whole: without its parameters, buffers and modules, which are watched as one."""
    own = object.__getattribute__(module, "__dict__")
    held = [(key, part) for key, part in own.items() if key not in _OF_A_MODULE or (key.endswith("_hooks") and part)]
    held += own["_modules"].items()
    held += () if whole else [*own["_parameters"].items(), *own["_buffers"].items()]
    return held


def _mark_for(thing: Any, memory: set[int]) -> Callable[[Any], Any] | None:
    """Returns what shows whether a thing has changed; None if it is not watched."""
    if is_a(thing, torch.Tensor):
        is_kept = not is_plain_tensor(thing) or thing.is_inference() or address(thing) in memory
        return None if is_kept else _version
    if is_a(thing, numpy.ndarray):
        is_short = thing.dtype.kind in "biufc" and thing.nbytes <= MOST_ARRAY_BYTES
        return (lambda array: zlib.crc32(array.tobytes())) if is_short else None
    if is_generator(thing):
        return _state
    if is_a(thing, torch.nn.Module):
        tensors = _tensors(thing)
        is_apart = tensors and not any(is_plain_tensor(each) and address(each) in memory for each in tensors)
        return _versions if is_apart and not _is_metric(thing) else None
    if is_a(thing, (*_WATCHED_ELSEWHERE, *_CONTAINERS)) or _is_metric(thing) or _is_ours(thing):
        return None
    has_state = all(
        any(name in vars(kind) for kind in type(thing).__mro__) for name in ("state_dict", "load_state_dict")
    )
    return _attributes if has_state else None


def _version(tensor: torch.Tensor) -> int:
    return tensor._version


def _versions(module: Any) -> list[tuple[int, int]]:
    return [(id(tensor), tensor._version) for tensor in _tensors(module)]


def _attributes(thing: Any) -> list[Any]:
    return [mark(part) for part in object.__getattribute__(thing, "__dict__").values()]


def _state(generator: Any) -> Any:
    state = states_of({"": generator}).get("")
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _seed(thing: Any) -> int | None:
    return thing.initial_seed() if isinstance(thing, torch.Generator) else None


def _is_metric(thing: Any) -> bool:
    """Returns whether a thing sums over an evaluation, which begins anew."""
    return any(kind.__name__ == "Metric" for kind in type(thing).__mro__)


def modules_of(module: Any) -> Iterator[Any]:
    """Yields a module and all in it, without a call of the program's methods."""
    left, seen = [module], set[int]()
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            own = object.__getattribute__(each, "__dict__")
            left += [part for part in own.get("_modules", {}).values() if part is not None]


def _tensors(module: Any) -> list[Any]:
    owns = [object.__getattribute__(each, "__dict__") for each in modules_of(module)]
    found = [part for own in owns for kind in ("_parameters", "_buffers") for part in own.get(kind, {}).values()]
    return [each for each in found if each is not None]


def known_to(state: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Returns the identities of the objects that a state reaches, and the addresses of its tensors."""
    known, memory = set[int](), set[int]()
    for thing in reached_by(state):
        known.add(id(thing))
        if is_a(thing, torch.nn.Module):
            known |= {id(each) for each in modules_of(thing)}
            tensors = _tensors(thing)
        else:
            tensors = [part for _, part in parts(thing, set()) if is_a(part, torch.Tensor)]
        memory |= {address(each) for each in tensors if is_plain_tensor(each)}
    memory |= {address(each) for each in state.values() if is_a(each, torch.Tensor) and is_plain_tensor(each)}
    return known, memory


def reached_by(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the objects of the state, and what they hold in attributes, lists and dicts. A module's state_dict() has
    nothing of its other attributes, and a scheduler's nothing of its optimizer."""
    seen, kinds = set[int](), set[type]()
    left = list(state.values())
    while left and len(seen) < MOST_OBJECTS:
        thing = left.pop()
        if id(thing) in seen or is_a(thing, (torch.Tensor, *_LEAVES)):
            continue
        seen.add(id(thing))
        yield thing
        if is_a(thing, dict):
            left += dict.values(thing)
        elif rows := [kind for kind in (list, tuple, set, frozenset, deque) if is_a(thing, kind)]:
            left += rows[0].__iter__(thing)  # not that of a subclass, which is the program's
        elif is_a(thing, torch.nn.Module) and not _saves_more(thing):
            left += filter(_saves_more, thing.modules())
        else:
            out = (*_OF_AN_OPTIMIZER, "optimizer") if is_a(thing, LRScheduler) else _OF_AN_OPTIMIZER
            left += (part for name, part in parts(thing, kinds) if name not in out)
            if type(thing) is FunctionType:
                left += _globals_of(thing)


def _saves_more(module: torch.nn.Module) -> bool:
    """Returns whether a module's class says itself what is saved."""
    names = ("state_dict", "get_extra_state", "_save_to_state_dict")
    return any(getattr(type(module), name) is not getattr(torch.nn.Module, name) for name in names)


def _globals_of(function: FunctionType) -> Iterator[Any]:
    """Yields the global variables that a function names, and of functions those of its module."""
    ours = function.__globals__
    for name in () if is_ours(ours.get("__name__")) else function.__code__.co_names:
        thing = ours.get(name)
        if type(thing) is not FunctionType or thing.__globals__ is ours:
            yield thing
