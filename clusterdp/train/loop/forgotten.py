"""Forgotten: optimizers, schedulers and random generators that the program uses and that are not in the state of its
loop.

A resume would begin them anew, without an error. Hooks show which optimizers step, and the garbage collector knows all
schedulers. Generators are looked for in the variables of the function that iterates over the loop and of its module.
"""

from __future__ import annotations

import inspect
import pickle
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from clusterdp.checkpoint.state.as_built import parameters_of
from clusterdp.checkpoint.state.generators import is_generator, living, reached, states_of
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.wording import some_of

LONGEST_S = 0.05  # limit of the search for generators
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
        self._state = state
        self._generators = {each: _mark(each) for each in _generators(loader)}
        found = living(LRScheduler)
        self._schedulers = weakref.WeakKeyDictionary({thing: _count(thing) for thing in found})
        self._told: set[int] = set()
        _listen()
        _stepped.clear()  # only the loop at work looks

    def look(self, record: AttemptRecord) -> None:
        """Prints, once, what a save leaves out. On rank 0."""
        moved = [thing for thing, count in self._schedulers.items() if _count(thing) != count]
        used = [*(thing for thing in _stepped if thing.state), *moved]  # plain SGD has nothing to lose
        used += [each.generator for each, mark in self._generators.items() if _mark(each) != mark]
        if all(id(thing) in self._told for thing in used):
            return
        known = {id(thing) for thing in _reached(self._state)}
        for thing in used:
            if id(thing) not in known | self._told:
                what = (
                    f"{self._named(thing)} is used, but is not in the state of the loop: a resume begins it anew. Put "
                    "it into the state: job.loop(loader, {..., 'name': it})."
                )
                say(f"clusterdp: {what}", error=True)
                record.event("forgotten", what=what)
            self._told.add(id(thing))

    def _named(self, thing: Any) -> str:
        name = next((each.name for each in self._generators if each.generator is thing), "")
        return name or _named(thing, self._state)


class _Found:
    """A generator, and its name, such as `data.rng (numpy.Generator, train.py:31)`."""

    def __init__(self, generator: Any, name: str):
        self.generator, self.name = generator, name


def _mark(found: _Found) -> bytes:
    state = states_of({"": found.generator})[""]
    return state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)


def _generators(loader: Any) -> list[_Found]:
    """Returns the generators that the program's variables reach, without those of loaders and of our own objects. No
    code of the program is run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_ours(frame.f_globals.get("__name__")):
        frame = frame.f_back
    if frame is None:
        return []
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    variables = {**frame.f_globals, **frame.f_locals}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        frame.f_locals.clear()  # until 3.12 a copy, which would keep each object alive that the program has deleted
    found: dict[int, _Found] = {}
    loaders, ends = [loader], time.perf_counter() + LONGEST_S
    for name, value in variables.items():
        if name[:2] == "__" or _is_ours(type(value).__module__) or time.perf_counter() > ends:
            continue
        for path, thing in reached(value):
            if isinstance(thing, DataLoader):
                loaders.append(thing)
            elif is_generator(thing):
                kind = f"{type(thing).__module__.partition('.')[0]}.{type(thing).__name__}"
                found.setdefault(id(thing), _Found(thing, f"{'.'.join(filter(None, (name, path)))} ({kind}, {place})"))
    kept = {id(thing) for each in loaders for _, thing in reached(each)}
    return [each for key, each in found.items() if key not in kept]


def _is_ours(module: Any) -> bool:
    return str(module).startswith("clusterdp.") and not str(module).startswith("clusterdp.recipes")


def _count(scheduler: Any) -> Any:
    return vars(scheduler).get("last_epoch")


def _named(thing: Any, state: Mapping[str, Any]) -> str:
    """Returns, for example, `the Adam of model/0.weight, model/0.bias`."""
    optimizer = thing if isinstance(thing, torch.optim.Optimizer) else vars(thing).get("optimizer")
    its = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    names = [f"{name}/{key}" for name, key, parameter in parameters_of(state) if id(parameter) in its]
    kind = f"the {type(thing).__name__}"
    return kind if not names else f"{kind} of {some_of(names, 2)}"


def _reached(state: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the objects of the state, and what they hold in attributes, lists and dicts. A module's state_dict() has
    nothing of its other attributes, and a scheduler's nothing of its optimizer."""
    seen: set[int] = set()
    left = list(state.values())
    while left and len(seen) < MOST_OBJECTS:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, (torch.Tensor, str, bytes, int, float, type(None))):
            continue
        seen.add(id(thing))
        yield thing
        if isinstance(thing, dict):
            left += thing.values()
        elif isinstance(thing, (list, tuple)):
            left += thing
        elif (saves := getattr(type(thing), "state_dict", None)) is not torch.nn.Module.state_dict:
            yield from (each for _, each in reached(saves, far=True))  # an optimizer in its closure, or a global one
            out = (*_OF_AN_OPTIMIZER, "optimizer") if isinstance(thing, LRScheduler) else _OF_AN_OPTIMIZER
            left += (item for name, item in getattr(thing, "__dict__", {}).items() if name not in out)
