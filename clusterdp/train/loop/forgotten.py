"""Forgotten: optimizers, schedulers, random generators and iterators that the program uses and that are not in the
state of its loop.

A resume would begin them anew, without an error. Hooks show which optimizers step, and the garbage collector knows all
schedulers and iterators of DataLoaders. Generators are looked for in the variables of the function that iterates over
the loop and of its module.
"""

from __future__ import annotations

import pickle
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from clusterdp.checkpoint.state.as_built import parameters_of
from clusterdp.checkpoint.state.generators import is_a, is_generator, living, module_of, parts, reached, states_of
from clusterdp.train.loop.loop_body import is_ours, variables_of
from clusterdp.train.loop.plain_values import address
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.wording import some_of

LONGEST_S = 0.02  # limit of the search for generators, in time of the CPU
MOST_GENERATORS = 64  # limit of the generators that each save looks at
MOST_LINES = 8  # an environment per process may have a generator each
LOOKS = 4  # how often the garbage collector is asked for iterators, at 50 ms
MOST_OBJECTS = 10_000  # limit of the objects in the state that are searched
_OF_AN_OPTIMIZER = ("state", "param_groups")  # attributes with many tensors
_stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # of the loop at work


@cache
def _listen() -> None:
    register_optimizer_step_post_hook(_note_step)  # never removed, as in open_window.py


def _note_step(optimizer: Any, *_: Any) -> None:
    _stepped.add(optimizer)


class Forgotten:
    """What `state` does not reach of the objects that are used. The search takes some 20 ms at the loop's begin.

    loader: the loop's loader, whose generators are kept with its position.
    """

    def __init__(self, state: Mapping[str, Any], loader: Any):
        self._state, self._loader = state, loader
        self._generators = _generators(loader)
        found = living(LRScheduler, Optimizer, _BaseDataLoaderIter)
        self._read = _read([thing for thing in found if is_a(thing, _BaseDataLoaderIter)])
        self._looks, self._step = 0, -1
        self._schedulers = [(weakref.ref(thing), _count(thing)) for thing in found if is_a(thing, LRScheduler)]
        # An optimizer that is built in each step has nothing to keep: a new one is named if it steps after a look.
        self._optimizers = weakref.WeakSet(thing for thing in found if is_a(thing, Optimizer))
        self._told: set[int] = set()
        self._lines = 0
        self._shared = {id(tensor) for _, tensor in _shared(state)}  # as each attempt builds it again
        _listen()
        _stepped.clear()  # only the loop at work looks

    def look(self, record: AttemptRecord) -> None:
        """Prints, once, what a save leaves out. On rank 0."""
        if names := sorted({name for name, tensor in _shared(self._state) if id(tensor) not in self._shared}):
            self._shared |= {id(tensor) for _, tensor in _shared(self._state)}
            self._say(
                record,
                f"{some_of(names, 4)} in the state of the loop has tensors of a model or an optimizer, which change "
                "with each step: a resume makes copies of them, which do not. Copy them: "
                "copy.deepcopy(model.state_dict()), optimizer.load_state_dict(copy.deepcopy(best)).",
            )
        moved = [thing for ref, count in self._schedulers if (thing := ref()) is not None and _count(thing) != count]
        stepped = list(_stepped)
        used = [each for each in stepped if each.state and each in self._optimizers]  # plain SGD has nothing to lose
        used += [*moved, *(each.generator for each in self._generators if each.is_used()), *self._read_on(record.step)]
        self._optimizers.update(stepped)
        _stepped.clear()
        if all(id(thing) in self._told for thing in used):
            return
        known = {id(thing) for thing in reached_by(self._state)}
        for thing in used:
            if id(thing) not in known | self._told and self._lines < MOST_LINES:
                self._lines += 1
                remedy = "Put it into the state: job.loop(loader, {..., 'name': it})."
                if is_a(thing, _BaseDataLoaderIter):
                    remedy = "Give the loop one object whose __iter__ yields from both loaders, such as their zip()."
                what = (
                    f"{self._named(thing)} is used, but is not in the state of the loop: a resume begins it anew. "
                    f"{remedy}"
                )
                self._say(record, what)
            self._told.add(id(thing))

    def _say(self, record: AttemptRecord, what: str) -> None:
        say(f"clusterdp: {what}", error=True)
        record.event("forgotten", what=what)

    def _read_on(self, step: int) -> list[Any]:
        """Returns the iterators of other DataLoaders that were read on since a look at an earlier step: one of an
        evaluation ends before the next step."""
        if step == self._step or self._looks == LOOKS:
            return []
        self._step, self._looks, before = step, self._looks + 1, self._read
        self._read = _read(living(_BaseDataLoaderIter))
        on = [each for each, number in self._read.items() if number > before.get(each, number)]
        held = [*self._state.values(), self._loader]
        known = {id(thing) for _, thing in reached(held, far=True)} if on else set[int]()
        return [each for each in on if not known & _sources(each)]

    def _named(self, thing: Any) -> str:
        if is_a(thing, _BaseDataLoaderIter):
            return f"a second DataLoader, of a {type(thing._dataset).__name__},"
        name = next((each.name for each in self._generators if each.generator is thing), "")
        return name or _named(thing, self._state)


def _shared(state: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Returns the tensors in the dicts of a state that are those of its modules and optimizers too, by name and key."""
    own = set[int]()
    for thing in state.values():
        if is_a(thing, torch.nn.Module):
            own |= {address(tensor) for tensor in (*thing.parameters(), *thing.buffers()) if _is_plain(tensor)}
        elif is_a(thing, Optimizer):
            own |= {address(tensor) for tensor in tree_leaves([*thing.state.values()]) if _is_plain(tensor)}
    parts = [
        (f"{name}/{key}", part) for name, held in state.items() if type(held) is dict for key, part in held.items()
    ]
    return [
        (name, leaf) for name, part in parts for leaf in tree_leaves(part) if _is_plain(leaf) and address(leaf) in own
    ]


def _is_plain(tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        return False
    return bool(tensor.numel() and tensor.device.type != "meta")


def _read(iterators: list[Any]) -> weakref.WeakKeyDictionary[Any, int]:
    """Returns how many batches each iterator has given."""
    return weakref.WeakKeyDictionary({each: vars(each).get("_num_yielded", 0) for each in iterators})


def _sources(iterator: Any) -> set[int]:
    """Returns the identities of what an iterator reads. A loader may make a DataLoader in each epoch, and Shards do."""
    own = vars(iterator)
    sampler, dataset = own.get("_index_sampler"), own.get("_dataset")
    named = [sampler, dataset, getattr(sampler, "sampler", None), getattr(dataset, "shards", None)]
    return {id(thing) for thing in named if thing is not None}


class _Found:
    """A generator, and its name, such as `data.rng (numpy.Generator, train.py:31)`."""

    def __init__(self, generator: Any, name: str):
        self.generator, self.name = generator, name
        self._mark, self._seed = _mark(generator), _seed(generator)

    def is_used(self) -> bool:
        """Not if the program has seeded it since: it may do so in each step."""
        return _seed(self.generator) == self._seed and _mark(self.generator) != self._mark


def _mark(generator: Any) -> bytes:
    state = states_of({"": generator}).get("")
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _seed(generator: Any) -> int | None:
    return generator.initial_seed() if isinstance(generator, torch.Generator) else None


def _generators(loader: Any) -> list[_Found]:
    """Returns the generators that the program's variables reach, without those of loaders and of our own objects. No
    code of the program is run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return []
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    found: dict[int, tuple[Any, str]] = {}
    loaders, ends = [loader], time.thread_time() + LONGEST_S
    for name, value in variables_of(frame).items():
        if time.thread_time() > ends:
            break
        if name[:2] == "__" or is_ours(module_of(type(value))):
            continue
        for path, thing in reached(value):
            if is_a(thing, DataLoader):
                loaders.append(thing)
            elif is_generator(thing):
                kind = f"{type(thing).__module__.partition('.')[0]}.{type(thing).__name__}"
                found.setdefault(id(thing), (thing, f"{'.'.join(filter(None, (name, path)))} ({kind}, {place})"))
            if time.thread_time() > ends:
                break
    ends = time.thread_time() + LONGEST_S
    for each in loaders if found else ():
        for _, thing in reached(each, far=True):
            found.pop(id(thing), None)
            if time.thread_time() > ends:
                return []  # the loaders may keep any of them
    return [_Found(*each) for each in list(found.values())[:MOST_GENERATORS]]


def _count(scheduler: Any) -> Any:
    return vars(scheduler).get("last_epoch")


def _named(thing: Any, state: Mapping[str, Any]) -> str:
    """Returns, for example, `the Adam of model/0.weight, model/0.bias`."""
    optimizer = thing if isinstance(thing, torch.optim.Optimizer) else vars(thing).get("optimizer")
    its = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    names = [f"{name}/{key}" for name, key, parameter in parameters_of(state) if id(parameter) in its]
    kind = f"the {type(thing).__name__}"
    return kind if not names else f"{kind} of {some_of(names, 2)}"


def reached_by(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the objects of the state, and what they hold in attributes, lists and dicts. A module's state_dict() has
    nothing of its other attributes, and a scheduler's nothing of its optimizer."""
    seen, kinds = set[int](), set[type]()
    left = list(state.values())
    while left and len(seen) < MOST_OBJECTS:
        thing = left.pop()
        if id(thing) in seen or is_a(thing, (torch.Tensor, str, bytes, int, float, type(None), type, ModuleType)):
            continue
        seen.add(id(thing))
        yield thing
        if is_a(thing, dict):
            left += dict.values(thing)
        elif is_a(thing, (list, tuple, set, frozenset, deque)):
            left += thing
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
