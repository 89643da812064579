"""Forgotten: what the program uses and changes, and what is not in the state of its loop.

A resume would begin it anew, without an error. Hooks show which optimizers step, the garbage collector knows all
schedulers and iterators of DataLoaders, and Census all else that the variables of the program reach.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter

from clusterdp.checkpoint.state.as_built import parameters_of
from clusterdp.checkpoint.state.generators import is_a, is_ours, living, module_of, reached
from clusterdp.train.loop.census import Census, Watched, reached_by
from clusterdp.train.loop.loop_body import variables_of
from clusterdp.train.loop.plain_values import address, is_plain_tensor
from clusterdp.train.output.attempt_record import AttemptRecord
from clusterdp.train.output.say import say
from clusterdp.wording import some_of

MOST_LINES = 8  # an environment per process may have a generator each
LOOKS = 4  # how often the garbage collector is asked for iterators, and the variables for what is new, at 50 ms
_stepped: weakref.WeakSet[Any] = weakref.WeakSet()  # of the loop at work


@cache
def _listen() -> None:
    register_optimizer_step_post_hook(_note_step)  # never removed, as in open_window.py


def _note_step(optimizer: Any, *_: Any) -> None:
    _stepped.add(optimizer)


class Forgotten:
    """What `state` does not reach of the objects that are used. The search takes some 20 ms at the loop's begin, and at
    the first saves.

    loader: the loop's loader, whose generators are kept with its position. older: returns the variables that have
    changed and are older than an epoch. forget: names of variables that begin anew.
    """

    def __init__(
        self, state: Mapping[str, Any], loader: Any, older: Callable[[], list[str]] = list, forget: Collection[str] = ()
    ):
        self._state, self._loader, self._older, self._forget = state, loader, older, {*forget}
        self._census, self._place = Census(state, loader), ""
        self._take_census(at_begin=True)
        found = living(LRScheduler, Optimizer, _BaseDataLoaderIter)
        self._read = _read([thing for thing in found if is_a(thing, _BaseDataLoaderIter)])
        self._looks, self._step = 0, -1
        self._schedulers = [(weakref.ref(thing), _count(thing)) for thing in found if is_a(thing, LRScheduler)]
        # An optimizer that is built in each step has nothing to keep: a new one is named if it steps after a look.
        self._optimizers = weakref.WeakSet(thing for thing in found if is_a(thing, Optimizer))
        self._told: set[int] = set()
        self._lines, self._has_listed = 0, False
        self._shared = {id(tensor) for _, tensor in _shared(state)}  # as each attempt builds it again
        _listen()
        _stepped.clear()  # only the loop at work looks

    def _take_census(self, *, at_begin: bool) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_ours(frame.f_globals.get("__name__")):
            frame = frame.f_back
        if frame is not None:
            self._place = self._place or f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            with suppress(Exception):  # of the program's objects, which may be anything: never ends a training
                self._census.add(variables_of(frame), at_begin=at_begin)

    def look(self, record: AttemptRecord) -> None:
        """Prints, once, what a save leaves out. On rank 0."""
        if names := sorted({name for name, tensor in _shared(self._state) if id(tensor) not in self._shared}):
            self._shared |= {id(tensor) for _, tensor in _shared(self._state)}
            self._say(
                record,
                names[0],
                "tensors",
                f"{some_of(names, 4)} in the state of the loop has tensors of a model or an optimizer, which change "
                "with each step: a resume makes copies of them, which do not. Copy them: "
                "copy.deepcopy(model.state_dict()), optimizer.load_state_dict(copy.deepcopy(best)).",
            )
        used, changed = self._used(record.step), self._census.changed()
        if record.step != self._step and self._looks < LOOKS:
            self._looks += 1
            if self._looks < LOOKS:
                self._take_census(at_begin=False)
            else:
                self._census.end()
        self._step = record.step
        self._name_things(record, used, changed)
        self._list_older(record)

    def _name_things(self, record: AttemptRecord, used: list[Any], changed: list[Watched]) -> None:
        found = [*((thing, None) for thing in used), *((each.thing, each) for each in changed)]
        if all(id(thing) in self._told for thing, _ in found):
            return
        known = {id(thing) for thing in reached_by(self._state)}
        for thing, watched in found:
            if id(thing) not in known | self._told and self._lines < MOST_LINES:
                self._name(record, thing, watched)
            self._told.add(id(thing))

    def _list_older(self, record: AttemptRecord) -> None:
        """Lists, in one line, numbers, lists and dicts that have changed, but not what has been named."""
        paths = [path for path in self._older() if not self._is_left_out(path)]
        if paths and not self._has_listed:
            self._has_listed, them = True, "them" if len(paths) > 1 else "it"
            what = (
                f"changed, and older than an epoch: {some_of(paths, 8)}. A resume begins {them} anew. Put {them} into "
                f"the state, as in {{'best': {{'loss': 0.5}}}}, or leave {them} out: job.loop(..., forget=[...])."
            )
            say(f"clusterdp: {what}")
            record.event("forgotten", name=", ".join(paths), kind="values", where=self._place, what=what, quiet=True)

    def _is_left_out(self, path: str) -> bool:
        return any(f"{path}.".startswith(f"{name}.") for name in self._forget)

    def _used(self, step: int) -> list[Any]:
        """Returns optimizers and schedulers that stepped, and loaders that were read."""
        moved = [thing for ref, count in self._schedulers if (thing := ref()) is not None and _count(thing) != count]
        stepped = list(_stepped)
        used = [each for each in stepped if each.state and each in self._optimizers]  # plain SGD has nothing to lose
        self._optimizers.update(stepped)
        _stepped.clear()
        return [*used, *moved, *self._read_on(step)]

    def _read_on(self, step: int) -> list[Any]:
        """Returns the iterators of other DataLoaders that were read on since a look at an earlier step: one of an
        evaluation ends before the next step."""
        if step == self._step or self._looks == LOOKS:
            return []
        before, self._read = self._read, _read(living(_BaseDataLoaderIter))
        on = [each for each, number in self._read.items() if number > before.get(each, number)]
        held = [*self._state.values(), self._loader]
        known = {id(thing) for _, thing in reached(held, far=True)} if on else set[int]()
        return [each for each in on if not known & _sources(each)]

    def _name(self, record: AttemptRecord, thing: Any, watched: Watched | None) -> None:
        remedy = "Put it into the state: job.loop(loader, {..., 'name': it})."
        if watched is not None:
            path = watched.path
            if self._is_left_out(path):
                return
            self._forget.add(path)  # several tensors of a list are named once
            name, kind = path, f"{module_of(watched.kind).partition('.')[0]}.{watched.kind.__name__}"
            called = f"{name} ({kind}, {self._place})"
            remedy = f"{remedy[:-1]}, or leave it out: job.loop(..., forget=['{path}'])."
        elif is_a(thing, _BaseDataLoaderIter):
            name, kind = "a second DataLoader", type(thing._dataset).__name__
            called = f"{name}, of a {kind},"
            remedy = "Give the loop one object whose __iter__ yields from both loaders, such as their zip()."
        else:
            name, kind = _named(thing, self._state), type(thing).__name__
            called = name
        self._lines += 1
        begins_anew = "is used, but is not in the state of the loop: a resume begins it anew."
        self._say(record, name, kind, f"{called} {begins_anew} {remedy}")

    def _say(self, record: AttemptRecord, name: str, kind: str, what: str) -> None:
        say(f"clusterdp: {what}", error=True)
        record.event("forgotten", name=name, kind=kind, where=self._place, what=what)


def _shared(state: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Returns the tensors in the dicts of a state that are those of its modules and optimizers too, by name and key."""
    parts = [
        (f"{name}/{key}", leaf)
        for name, held in state.items()
        if type(held) is dict
        for key, part in held.items()
        for leaf in tree_leaves(part)
        if is_plain_tensor(leaf)
    ]
    own = set[int]()
    for thing in state.values() if parts else ():
        if is_a(thing, torch.nn.Module):
            own |= {address(tensor) for tensor in (*thing.parameters(), *thing.buffers()) if is_plain_tensor(tensor)}
        elif is_a(thing, Optimizer):
            own |= {address(tensor) for tensor in tree_leaves([*thing.state.values()]) if is_plain_tensor(tensor)}
    return [(name, leaf) for name, leaf in parts if address(leaf) in own]


def _read(iterators: list[Any]) -> weakref.WeakKeyDictionary[Any, int]:
    """Returns how many batches each iterator has given."""
    return weakref.WeakKeyDictionary({each: vars(each).get("_num_yielded", 0) for each in iterators})


def _sources(iterator: Any) -> set[int]:
    """Returns the identities of what an iterator reads. A loader may make a DataLoader in each epoch, and Shards do."""
    own = vars(iterator)
    sampler, dataset = own.get("_index_sampler"), own.get("_dataset")
    named = [sampler, dataset, getattr(sampler, "sampler", None), getattr(dataset, "shards", None)]
    return {id(thing) for thing in named if thing is not None}


def _count(scheduler: Any) -> Any:
    return vars(scheduler).get("last_epoch")


def _named(thing: Any, state: Mapping[str, Any]) -> str:
    """Returns, for example, `the Adam of model/0.weight, model/0.bias`."""
    optimizer = thing if isinstance(thing, torch.optim.Optimizer) else vars(thing).get("optimizer")
    its = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    names = [f"{name}/{key}" for name, key, parameter in parameters_of(state) if id(parameter) in its]
    kind = f"the {type(thing).__name__}"
    return kind if not names else f"{kind} of {some_of(names, 2)}"
