"""Forgotten: optimizers and schedulers that the program uses and that are not in the state of its loop.

A resume would begin them anew, without an error. Hooks show which optimizers step, and the garbage collector knows all
schedulers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from clusterdp.checkpoint.state.as_built import parameters_of
from clusterdp.checkpoint.state.generators import living
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.wording import some_of

MOST_OBJECTS = 10_000  # limit of the objects in the state that are searched
_OF_AN_OPTIMIZER = ("state", "param_groups")  # attributes with many tensors
_stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # of the loop at work


@cache
def _listen() -> None:
    register_optimizer_step_post_hook(_note_step)  # never removed, as in open_window.py


def _note_step(optimizer: Any, *_: Any) -> None:
    _stepped.add(optimizer)


class Forgotten:
    """The optimizers and schedulers that `state` does not reach. The search takes some 20 ms at the loop's begin."""

    def __init__(self, state: Mapping[str, Any]):
        self._state = state
        found = living(LRScheduler)
        self._schedulers = weakref.WeakKeyDictionary({thing: _count(thing) for thing in found})
        self._told: set[int] = set()
        _listen()
        _stepped.clear()  # only the loop at work looks

    def look(self, record: AttemptRecord) -> None:
        """Prints, once, what a save leaves out. On rank 0."""
        moved = [thing for thing, count in self._schedulers.items() if _count(thing) != count]
        used = [*(thing for thing in _stepped if thing.state), *moved]  # plain SGD has nothing to lose
        if all(id(thing) in self._told for thing in used):
            return
        known = {id(thing) for thing in _reached(self._state)}
        for thing in used:
            if id(thing) not in known | self._told:
                what = (
                    f"{_named(thing, self._state)} is used, but is not in the state of the loop: a resume begins it "
                    "anew. Put it into the state: job.loop(loader, {..., 'name': it})."
                )
                say(f"clusterdp: {what}", error=True)
                record.event("forgotten", what=what)
            self._told.add(id(thing))


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
    nothing of its other attributes."""
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
        elif getattr(type(thing), "state_dict", None) is not torch.nn.Module.state_dict:
            left += (item for name, item in getattr(thing, "__dict__", {}).items() if name not in _OF_AN_OPTIMIZER)
