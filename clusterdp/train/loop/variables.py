"""Variables: the numbers, tensors and lists of the program that belong to an epoch, as state.

    for epoch in loop.epochs():
        total, losses = 0.0, []
        for x, y in epoch:
            ...
            total += loss.item()
        print(total / len(losses), loss.item())

A program cannot keep these in a state, since it makes them anew in each epoch. Without this, an epoch that is resumed
would sum over its rest, and the code after an epoch whose batches are done would have no `loss` at all. What is older
than the epoch belongs into the state: what changes of it is named once.
"""

from __future__ import annotations

import inspect
import pickle
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_map

from clusterdp.checkpoint.state import plain_holders
from clusterdp.checkpoint.state.generators import reached
from clusterdp.checkpoint.state.tree import Flattener
from clusterdp.errors import StateError
from clusterdp.train.loop.loop_body import Names, is_at_for, names_of, set_variables, variables_of
from clusterdp.train.loop.position import Position
from clusterdp.train.output.say import say
from clusterdp.train.ranks.rank import Rank
from clusterdp.wording import some_of

EPOCHS, BATCHES = "epochs", "batches"  # the two loops of a program
MOST_BYTES = 1 << 20  # limit of a tensor
MOST_ITEMS = 10_000  # limit of a list, with all that it holds
LOOKS = 3  # after the first saves, nothing new is expected
LONGEST_S = 0.02  # limit of a search through a data set, in time of the CPU


@dataclass
class _For:
    """A `for` of the program that is under way. held: the variables that are kept, by name or `object.attribute`.
    built: the objects in them when the program came here. marks: of what may change and is not kept."""

    frame: FrameType
    place: int
    names: Names
    held: dict[str, Any] = field(default_factory=dict)
    built: plain_holders.Built = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)

    @property
    def function(self) -> str:
        return self.frame.f_code.co_name

    def holder(self) -> dict[str, Any]:
        return {"": plain_holders.DictHolder(self.held)}


class Variables:
    """Kept are numbers, strings, tensors, and lists and dicts of these, and such attributes of objects of the program's
    own classes, by each rank, for the same number of ranks; not the times of a clock.

    state: that of the loop, which keeps its own objects. loader: whose data set and sampler may change, too. forget:
    names of variables that begin anew."""

    per_rank, is_optional = True, True

    def __init__(
        self, state: Mapping[str, Any], loader: Any, position: Position, rank: Rank, forget: Collection[str] = ()
    ):
        self._state, self._loader, self._position, self._rank, self._forget = state, loader, position, rank, forget
        self._data_marks: dict[str, bytes] | None = None  # of the loader's parts, before the first epoch
        self._loops: dict[str, _For] = {}
        self._noted: dict[str, Any] = {}
        self._restored: Mapping[str, Any] = {}
        self._looks = 0  # how often a save has looked for what changes
        self._clocks = _clocks()

    def enter(self, loop: str, frame: FrameType | None) -> None:
        """Sets the restored variables. Called where the program asks for the first item of a loop. frame: of the
        generator that it asks."""
        self._loops.pop(loop, None)
        while frame is not None and (is_ours(frame.f_globals.get("__name__")) or _passes_on(frame)):
            frame = frame.f_back
        if frame is None or not is_at_for(frame):
            return
        outer = self._loops.get(EPOCHS)
        place = outer.place if outer is not None and outer.frame is frame else None
        found = self._loops[loop] = _For(frame, frame.f_lasti, names_of(frame, place))
        if loop == BATCHES and (outer is None or place == found.place):  # `for batch in loop`: there is no epoch's code
            found.names = Names(frozenset(), found.names.longer | found.names.own, found.names.after)
        saved, self._restored = self._restored.get(loop), {} if loop == BATCHES else self._restored
        found.held.update(self._values(found, found.names.own if loop == BATCHES else ()))
        found.built = plain_holders.noted(found.holder())
        if loop == BATCHES:
            found.marks = {name: _mark(value) for name, value in self._values(found, found.names.longer)}
            if self._data_marks is None:
                self._data_marks = {name: _mark(value) for name, value in self._values_of_data()}
        if saved is not None and saved["function"] == found.function:
            self._put_back(loop, found, saved)
        found.held.clear()  # else it keeps a graph

    def _put_back(self, loop: str, found: _For, saved: Mapping[str, Any]) -> None:
        now, values = variables_of(found.frame), saved["values"]
        values = {name: value for name, value in values.items() if name.partition(".")[0] not in self._forget}
        if loop == EPOCHS:  # of a loop that is done: the program may have begun others anew
            values = {name: value for name, value in values.items() if name not in now}
        if any(now.get(name) is None for name in saved["others"]):
            # `if not ready: writer, ready = Writer(), True`: a flag tells of what has to be made again
            values = {name: value for name, value in values.items() if type(value) is not bool}
        if torch.cuda.is_available():
            values |= {name: tree_map(_to_gpu, values[name]) for name in saved["gpu"] if name in values}
        names = list(values)
        plain_holders.fill(found.holder(), {"": values}, found.built, saved["links"])
        for path in names:
            name, _, attribute = path.partition(".")
            if attribute and name in now:
                object.__getattribute__(now[name], "__dict__")[attribute] = found.held[path]
        set_variables(found.frame, {name: found.held[name] for name in names if "." not in name})
        if names and self._rank.is_first:
            say(f"clusterdp: variables of {found.function}() go on as they were: {some_of(sorted(names), 8)}.")

    def leave(self) -> None:
        """Notes the variables after the last batch of an epoch, before the code after it, which a resumed attempt may
        repeat."""
        if (found := self._loops.pop(BATCHES, None)) is not None:
            self._noted = {BATCHES: self._take(found, found.names.own)}

    def end(self) -> None:
        self._loops.clear()

    def state_dict(self) -> dict[str, Any]:
        last = self._loops.get(EPOCHS)
        if self._position.finished and last is not None:
            return {EPOCHS: self._take(last, last.names.after)}
        found = self._loops.get(BATCHES)
        if found is None:
            return self._noted
        self._say_older(found)
        return {BATCHES: self._take(found, found.names.own)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = state

    def _values(self, found: _For, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yields variables, and the attributes of the program's objects in them."""
        variables, own = variables_of(found.frame), {id(thing) for thing in self._state.values()}
        for name in sorted(names):
            value = variables.get(name, self)
            if value is self or id(value) in own or name in self._forget or name[:2] == "__":
                continue
            if _is_the_programs(type(value)):
                attributes = object.__getattribute__(value, "__dict__").items()
                yield from ((f"{name}.{key}", part) for key, part in list(attributes) if type(key) is str)
            else:
                yield name, value

    def _values_of_data(self) -> Iterator[tuple[str, Any]]:
        """Yields the attributes of the program's data set and sampler, but not those that the loop tells or keeps."""
        own, ends = {id(thing) for thing in self._state.values()}, time.thread_time() + LONGEST_S
        for path, thing in reached(self._loader):
            if time.thread_time() > ends:
                return
            kind = type(thing)
            if path and id(thing) not in own and _is_written_here(kind) and not hasattr(kind, "state_dict"):
                attributes = object.__getattribute__(thing, "__dict__").items()
                told = {"epoch", "_epoch"} if hasattr(kind, "set_epoch") else set()
                yield from ((f"{path}.{key}", part) for key, part in list(attributes) if key not in told)

    def _take(self, found: _For, names: Iterable[str]) -> dict[str, Any]:
        memory, values, gpu, others = _memory(self._state), dict[str, Any](), list[str](), list[str]()
        found.held.clear()
        for name, value in self._values(found, names):
            if self._is_clock(value):
                continue
            try:
                leaves = list(_leaves(value, [MOST_ITEMS]))
                if not all(_is_plain(leaf, memory) for leaf in leaves):
                    raise StateError("not plain")
                copy = tree_map(_copied, dict(value) if type(value) is defaultdict else value)
                Flattener().flatten(copy, name)
            except StateError:
                others += [name]
                continue
            found.held[name], values[name] = value, copy
            gpu += [name] if any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in leaves) else []
        links = plain_holders.links(found.holder(), found.built)
        found.held.clear()
        return {"function": found.function, "values": values, "gpu": gpu, "links": links, "others": others}

    def _say_older(self, found: _For) -> None:
        """Names, once, what has changed of what is older than the epoch."""
        if self._looks == LOOKS or not self._rank.is_first:
            return
        self._looks += 1
        known = {id(part) for thing in self._state.values() if isinstance(thing, dict) for part in thing.values()}
        marks = {**found.marks, **(self._data_marks or {})}
        values = [*self._values(found, found.names.longer), *self._values_of_data()]
        kinds = (bool, int, float, torch.Tensor, list, dict, deque, set, numpy.ndarray, numpy.generic)
        values = [each for each in values if isinstance(each[1], kinds) and id(each[1]) not in known]
        changed = [name for name, value in values if not self._is_clock(value) and marks.get(name) != _mark(value)]
        if changed:
            self._looks = LOOKS
            what = "them anew. Put them" if len(changed) > 1 else "it anew. Put it"
            say(
                f"clusterdp: {found.function}() changes {some_of(changed, 8)}, older than an epoch: a resume begins "
                f"{what} into the state, as in {{'best': {{'loss': 0.5}}}}, or name them: job.loop(..., forget=[...])."
            )

    def _is_clock(self, value: Any) -> bool:
        """Returns whether the value is a time of this process, which means nothing in the next one."""
        pairs = zip(self._clocks, _clocks(), strict=True)
        return any(type(value) is type(was) and was <= value <= now for was, now in pairs)


def _clocks() -> list[float | int]:
    read = (time.time, time.monotonic, time.perf_counter, time.time_ns, time.monotonic_ns, time.perf_counter_ns)
    return [clock() for clock in read]


def is_ours(module: Any) -> bool:
    return str(module).startswith("clusterdp.") and not str(module).startswith("clusterdp.recipes")


def _passes_on(frame: FrameType) -> bool:
    """Returns whether a generator, such as tqdm's, asks for the `for` of another function."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and is_at_for(frame.f_back)


def _is_the_programs(kind: type) -> bool:
    """Returns whether the objects of a class belong to the program alone, such as a meter of its own."""
    known = (torch.nn.Module, torch.utils.data.Dataset, torch.utils.data.Sampler)  # the state has a place for these
    return kind is SimpleNamespace or (
        _is_written_here(kind) and not issubclass(kind, known) and not hasattr(kind, "state_dict")
    )


def _is_written_here(kind: type) -> bool:
    """Returns whether the program has written a class whose objects have attributes."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file is None or "-packages" in file or is_ours(kind.__module__):
        return False
    return kind.__module__.partition(".")[0] not in sys.stdlib_module_names and "__dict__" in dir(kind)


def _leaves(value: Any, left: list[int]) -> Iterator[Any]:
    """Yields the values in lists and dicts. left: how many may come, in one item. Raises StateError after these."""
    left[0] -= 1
    if left[0] < 0:
        raise StateError("too long")
    kind = type(value)
    if kind in (list, tuple, deque):
        for item in value:
            yield from _leaves(item, left)
    elif isinstance(value, dict) and kind is not Counter:
        for item in value.values():
            yield from _leaves(item, left)
    else:
        yield value


def _is_plain(leaf: Any, memory: Collection[int]) -> bool:
    """memory: addresses of what the state holds: a copy would no longer be the same."""
    if type(leaf) is torch.Tensor:
        is_trained = leaf.is_leaf and leaf.requires_grad
        is_there = leaf.layout == torch.strided and leaf.device.type != "meta"
        return is_there and not is_trained and leaf.nbytes <= MOST_BYTES and _address(leaf) not in memory
    if isinstance(leaf, (numpy.generic, numpy.ndarray)):
        return leaf.dtype.kind in "biufc" and leaf.nbytes <= MOST_BYTES
    return leaf is None or type(leaf) in (bool, int, float, str, Counter)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copied(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor:
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, (numpy.ndarray, Counter)) else leaf


def _to_gpu(leaf: Any) -> Any:
    return leaf.cuda() if isinstance(leaf, torch.Tensor) else leaf


def _mark(value: Any) -> bytes:
    """Returns what changes if plain values change; of other objects their identity. Never waits for a GPU."""
    try:
        leaves = [_mark_of(leaf) for leaf in _leaves(value, [MOST_ITEMS])]
    except StateError:
        return repr(len(value)).encode()
    return pickle.dumps((leaves, len(value) if isinstance(value, dict) else 0))


def _mark_of(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor:
        return id(leaf), None if leaf.is_inference() else leaf._version
    if isinstance(leaf, (numpy.generic, numpy.ndarray)) and leaf.dtype.kind in "biufc" and leaf.nbytes <= MOST_BYTES:
        return leaf.tobytes()
    if isinstance(leaf, set):
        return len(leaf)
    return leaf if leaf is None or type(leaf) in (bool, int, float, str, Counter) else id(leaf)


def _memory(state: Mapping[str, Any]) -> set[int]:
    modules = [thing for thing in state.values() if isinstance(thing, torch.nn.Module)]
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return {_address(tensor) for tensor in tensors if type(tensor) in (torch.Tensor, torch.nn.Parameter)}
