"""Variables: the numbers, tensors and lists of the program that belong to an epoch, as state.

    for epoch in loop.epochs():
        total, losses = 0.0, []
        for x, y in epoch:
            ...
            total += loss.item()
        print(total / len(losses), loss.item())

A program cannot keep these in a state, since it makes them anew in each epoch. Without this, an epoch that is resumed
would sum over its rest, and the code after an epoch whose batches are done would have no `loss` at all. Either all that
an epoch's batches change goes on, or nothing: a sum without its number of items would be wrong without a word. What is
older than the epoch belongs into the state: what changes of it is named once.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_map

from clusterdp.checkpoint.state import plain_holders
from clusterdp.checkpoint.state.generators import is_ours, is_written_here, parts, reached
from clusterdp.errors import StateError
from clusterdp.train.loop.census import reached_by
from clusterdp.train.loop.loop_body import Names, is_at_for, named_by_functions, names_of, set_variables, variables_of
from clusterdp.train.loop.plain_values import MOST_BYTES, MOST_ITEMS, address, copied, mark, on_gpu, to_gpu
from clusterdp.train.loop.position import Position
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.wording import some_of

EPOCHS, BATCHES = "epochs", "batches"  # the two loops of a program
LOOKS = 3  # after the first saves, nothing new is expected
LONGEST_S = 0.02  # limit of a search through a data set, in time of the CPU
_CLOCKS = (time.time, time.time_ns, time.monotonic, time.perf_counter)  # a sum may look like one of the last two
_KINDS = (bool, int, float, torch.Tensor, list, dict, deque, set, numpy.ndarray, numpy.generic)


@dataclass
class _For:
    """A `for` of the program that is under way, without its frame: that would keep all variables alive. marks: what
    the variables held when the program came here."""

    code: CodeType
    place: int
    names: Names
    marks: dict[str, Any] = field(default_factory=dict)

    def frame(self) -> FrameType | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        return frame


class Variables:
    """Kept are numbers, tensors, and lists and dicts of these, and such attributes of objects of the program's own
    classes, by each rank, for the same number of ranks.

    state: that of the loop, which keeps its own objects. loader: whose data set and sampler may change, too. forget:
    names of variables that begin anew."""

    per_rank, is_optional = True, True

    def __init__(
        self, state: Mapping[str, Any], loader: Any, position: Position, rank: Rank, forget: Collection[str] = ()
    ):
        self._state, self._loader, self._position, self._rank, self._forget = state, loader, position, rank, forget
        self._loops: dict[str, _For] = {}
        self._noted: tuple[int, dict[str, Any]] = (-1, {})  # an epoch, and its variables after the last batch
        self._restored: Mapping[str, Any] = {}
        self._object_marks: dict[str, Any] | None = None  # of modules and the loader's parts, before the first epoch
        self._missing: set[str] | None = None  # names that had no object before the first epoch
        self._looks = 0  # how often a save has looked for what changes
        self._told = set[str]()
        self._begun = [clock() for clock in _CLOCKS]

    def enter(self, loop: str, frame: FrameType | None) -> None:
        """Sets the restored variables. Called where the program asks for the first item of a loop. frame: of the
        generator that it asks."""
        self._loops.pop(loop, None)
        saved = self._restored.get(loop)
        if loop == BATCHES:
            self._restored = {}
        try:
            while frame is not None and (is_ours(frame.f_globals.get("__name__")) or _passes_on(frame)):
                frame = frame.f_back
            if frame is None or not is_at_for(frame):
                return
            found = self._found(loop, frame)
            if saved is not None and saved["function"] == frame.f_code.co_name:
                self._put_back(loop, frame, saved)
            self._loops[loop] = found
        except Exception as error:  # the values are the program's and may be anything: a training goes on without them
            self._say_lost(frame, f"{type(error).__name__}: {error}")

    def _found(self, loop: str, frame: FrameType) -> _For:
        outer = self._loops.get(EPOCHS)
        place = outer.place if outer is not None and outer.code is frame.f_code else None
        found = _For(frame.f_code, frame.f_lasti, names_of(frame, place))
        names, none = found.names, frozenset[str]()
        if loop == EPOCHS:
            found.names = Names(none, names.last, none, none, none, none)
        elif outer is None or place == found.place:  # `for batch in loop`: no code of an epoch
            found.names = Names(none, names.last, none, names.older | names.running | names.held, none, names.sets)
        if loop == BATCHES:
            if self._missing is None:
                now = variables_of(frame)
                self._missing = {name for name in found.names.made if now.get(name) is None}
            looks = self._rank.is_first and self._looks < LOOKS
            wanted = found.names.held | (_older(found.names, frame) if looks else none)
            found.marks = {path: mark(value) for path, value in self._values(frame, wanted)}
            if self._object_marks is None and looks:
                self._object_marks = {path: mark(value) for path, value in self._values_of_objects()}
        return found

    def _put_back(self, loop: str, frame: FrameType, saved: Mapping[str, Any]) -> None:
        now, values = variables_of(frame), saved["values"]
        values = {path: value for path, value in values.items() if not self._is_forgotten(path)}
        if loop == EPOCHS:  # of a loop that is done: the program may have begun others anew
            values = {path: value for path, value in values.items() if path not in now}
        if any(type(now.get(name)).__qualname__ != kind for name, kind in saved["classes"].items()):
            return
        if torch.cuda.is_available():
            values |= {path: tree_map(to_gpu, values[path]) for path in saved["gpu"] if path in values}
        paths = list(values)
        held: dict[str, Any] = {path: _get(now, path) for path in saved["held"] if path in values}
        live = {path: reference for path, reference in _built(held).items() if len(path) > 1 or path == ("",)}
        links = [[path, first, tuple(first) not in live] for path, first, _ in saved["links"]]
        plain_holders.fill({"": plain_holders.DictHolder(held)}, {"": values}, live, links)
        for path in paths:
            name, _, attribute = path.partition(".")
            if attribute:
                object.__getattribute__(now[name], "__dict__")[attribute] = held[path]
        set_variables(frame, {path: held[path] for path in paths if "." not in path})
        if paths and self._rank.is_first:
            names = some_of(sorted(paths), 8)
            say(f"clusterdp: variables of {frame.f_code.co_name}() go on as they were: {names}.")

    def leave(self) -> None:
        """Notes the variables after the last batch of an epoch, before the code after it, which a resumed attempt may
        repeat."""
        if (found := self._loops.pop(BATCHES, None)) is not None:
            self._noted = self._position.epoch, {BATCHES: self._take(found)}

    def end(self) -> None:
        self._loops.clear()

    def state_dict(self) -> dict[str, Any]:
        last = self._loops.get(EPOCHS)
        if self._position.finished and last is not None:
            return {EPOCHS: self._take(last)}
        found = self._loops.get(BATCHES)
        if found is None:
            return self._noted[1] if self._noted[0] == self._position.epoch else {}
        return {BATCHES: self._take(found)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = state

    def _is_forgotten(self, path: str) -> bool:
        return path in self._forget or path.partition(".")[0] in self._forget

    def _values(self, frame: FrameType, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yields variables, and the attributes of the program's objects in them, as `name.attribute`."""
        variables = variables_of(frame)
        own = {id(thing) for thing in self._state.values()}
        for name in sorted(names):
            value = variables.get(name, self)
            if value is self or id(value) in own or name[:2] == "__":
                continue
            pairs = {name: value}
            if _is_the_programs(type(value)):
                attributes = object.__getattribute__(value, "__dict__").items()
                pairs = {f"{name}.{key}": part for key, part in list(attributes) if type(key) is str}
            yield from ((path, part) for path, part in pairs.items() if not self._is_forgotten(path))

    def _values_of_objects(self) -> Iterator[tuple[str, Any]]:
        """Yields the attributes of the program's data set and sampler, but not those that the loop tells or keeps, and
        the numbers among the attributes of its modules, which are in no state_dict()."""
        own, ends = {id(thing) for thing in self._state.values()}, time.thread_time() + LONGEST_S
        modules = [(name, thing) for name, thing in self._state.items() if isinstance(thing, torch.nn.Module)]
        for path, thing in [
            (f"{name}.{key}".rstrip("."), part) for name, each in modules for key, part in each.named_modules()
        ]:
            if is_written_here(type(thing)):
                yield from (
                    (f"{path}.{key}", part) for key, part in list(vars(thing).items()) if type(part) in (int, float)
                )
        for path, thing in reached(self._loader):
            if time.thread_time() > ends:
                return
            kind = type(thing)
            if path and id(thing) not in own and is_written_here(kind) and not hasattr(kind, "state_dict"):
                attributes = object.__getattribute__(thing, "__dict__").items()
                told = {"epoch", "_epoch"} if hasattr(kind, "set_epoch") else set()
                yield from ((f"{path}.{key}", part) for key, part in list(attributes) if key not in told)

    def _take(self, found: _For) -> dict[str, Any]:
        """Returns the variables as they are."""
        nothing = {"function": "", "values": {}, "held": [], "classes": {}, "gpu": [], "links": []}
        if (frame := found.frame()) is None:
            return nothing
        try:
            return self._take_from(frame, found)
        except Exception as error:  # the values are the program's and may be anything: no save may fail of them
            self._say_lost(frame, f"{type(error).__name__}: {error}")
            return nothing

    def _take_from(self, frame: FrameType, found: _For) -> dict[str, Any]:
        names, variables, memory = found.names, variables_of(frame), _memory(self._state)
        held = dict(self._values(frame, names.held))
        now = {path: value for path, value in held.items() if found.marks.get(path) != mark(value)}
        roots = {path.partition(".")[0] for path in now if "." in path}
        # `if number == 0: writer = Writer()`: a number that goes on would leave an object unmade.
        made = names.made & (self._missing or set())
        now |= {name: variables[name] for name in names.running | names.last | made if name in variables}
        simple = (bool, int, float, torch.Tensor)
        known = set() if all(type(value) in simple for value in now.values()) else _known(self._state)
        left, values, gpu = [MOST_ITEMS, MOST_BYTES], dict[str, Any](), list[str]()
        lost = ""
        for path, value in now.items():
            if self._is_forgotten(path) or id(value) in known or self._is_time(value, _CLOCKS[:2]):
                continue
            try:
                values[path] = copied(value, memory, left)
            except StateError:
                lost = lost if path in names.last else path
                continue
            gpu += [path] if on_gpu(values[path]) else []
            if path in made:
                del values[path]  # it is older than the epoch
        if lost:
            self._say_lost(frame, f"{lost} is too large or holds other objects")
            values = {path: value for path, value in values.items() if path in names.last}
        kept = {path: now[path] for path in values}
        return {
            "function": frame.f_code.co_name,
            "values": values,
            "held": [path for path in held if path in values],
            "classes": {name: type(variables[name]).__qualname__ for name in roots},
            "gpu": [path for path in gpu if path in values],
            "links": plain_holders.links({"": plain_holders.DictHolder(kept)}, {}),
        }

    def _say_lost(self, frame: FrameType | None, why: str) -> None:
        """Says, once for each reason, that variables of an epoch begin anew."""
        if frame is not None and why not in self._told and self._rank.is_first:
            self._told.add(why)
            say(
                f"clusterdp: {frame.f_code.co_name}(): {why}: after a resume in an epoch, all variables of the epoch "
                "begin anew. job.loop(..., forget=[...]) leaves out the variables that it names."
            )

    def older(self) -> list[str]:
        """Returns what has changed of what is older than the epoch, at the first saves. On rank 0, in an epoch."""
        found = self._loops.get(BATCHES)
        if self._looks == LOOKS or found is None or (frame := found.frame()) is None:
            return []
        self._looks += 1
        try:
            known, memory = _known(self._state), _memory(self._state)
            marks = {**found.marks, **(self._object_marks or {})}
            values = [*self._values(frame, _older(found.names, frame)), *self._values_of_objects()]
            values = [each for each in values if isinstance(each[1], _KINDS) and id(each[1]) not in known]
            values = [(path, value) for path, value in values if not self._is_time(value, _CLOCKS)]
            return [path for path, value in values if marks.get(path, 0) != mark(value, memory)]
        except Exception:  # the values are the program's and may be anything
            return []

    def _is_time(self, value: Any, clocks: Sequence[Callable[[], Any]]) -> bool:
        """Returns whether the value is a time of this process, which means nothing in the next one."""
        pairs = zip(self._begun, clocks, strict=False)
        return any(type(value) is type(was) and was <= value <= clock() for was, clock in pairs)


def _older(names: Names, frame: FrameType) -> frozenset[str]:
    """Returns the names of what is older than the epoch, and may change in it."""
    return names.older | (named_by_functions(frame) - names.sets - names.held - names.running)


def _passes_on(frame: FrameType) -> bool:
    """Returns whether a generator, such as tqdm's, asks for the `for` of another function."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and is_at_for(frame.f_back)


def _is_the_programs(kind: type) -> bool:
    """Returns whether the objects of a class belong to the program alone, such as a meter of its own."""
    known = (torch.nn.Module, torch.utils.data.Dataset, torch.utils.data.Sampler)  # the state has a place for these
    return kind is SimpleNamespace or (
        is_written_here(kind) and not issubclass(kind, known) and not hasattr(kind, "state_dict")
    )


def _get(variables: Mapping[str, Any], path: str) -> Any:
    name, _, attribute = path.partition(".")
    thing = variables.get(name)
    return object.__getattribute__(thing, "__dict__").get(attribute) if attribute else thing


def _built(held: dict[str, Any]) -> plain_holders.Built:
    """Returns the lists and dicts that a restore fills. Tensors and arrays are replaced, for they may be parts of
    others."""
    noted = plain_holders.noted({"": plain_holders.DictHolder(held)})
    return {path: ref for path, ref in noted.items() if not isinstance(ref(), (torch.Tensor, numpy.ndarray, tuple))}


def _known(state: Mapping[str, Any]) -> set[int]:
    """Returns the identities of the objects that a state reaches."""
    return set(map(id, reached_by(state)))


def _memory(state: Mapping[str, Any]) -> set[int]:
    """Returns the addresses of a state's tensors."""
    modules = [thing for thing in state.values() if isinstance(thing, torch.nn.Module)]
    held = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    held += [part for thing in state.values() for _, part in parts(thing, set())]
    return {address(part) for part in (*held, *state.values()) if type(part) in (torch.Tensor, torch.nn.Parameter)}
