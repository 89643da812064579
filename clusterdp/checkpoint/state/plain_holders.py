"""Plain dicts, tensors and generators in a state. A restore fills them in place, with all that they hold: another name
for the same list, array or dict has the restored values, too.

best = {"loss": math.inf, "epoch": 0}
state = {"model": model, "best": best, "temperature": log_alpha}

Only objects that the program has built are filled, not what the training has put in their place: in
`best = {"weights": net.state_dict()}`, the tensors are the model's own until copies replace them. Therefore a save
records which objects are which (links).
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

import torch

from clusterdp.checkpoint.state.generators import is_generator, set_states, states_of
from clusterdp.errors import StateError

Path = tuple[Any, ...]  # the name in the state, and keys
Built = dict[Path, Callable[[], Any]]  # references to the objects that the program has built


class DictHolder:
    """Saves and restores a plain dict."""

    per_rank = False

    def __init__(self, held: dict[Any, Any]):
        self.held = held

    def state_dict(self) -> dict[Any, Any]:
        return self.held

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        fill({"": self}, {"": state}, noted({"": self}))


class TensorHolder:
    """Saves and restores a tensor, or a parameter outside a module."""

    per_rank = False

    def __init__(self, held: torch.Tensor):
        self.held = held

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"tensor": self.held.detach()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        saved = state["tensor"]
        if saved.shape != self.held.shape or saved.dtype != self.held.dtype:
            was, now = (f"{str(tensor.dtype)[6:]} of {tuple(tensor.shape)}" for tensor in (saved, self.held))
            raise ValueError(f"its tensor was {was} when it was saved, and is {now} here")
        with torch.no_grad():
            self.held.copy_(saved)


class MetricHolder:
    """Saves and restores a metric of torchmetrics, or a collection: its state_dict() is empty by default. Each rank has
    its own sums."""

    per_rank = True

    def __init__(self, held: Any):
        self.held = held
        self.parts = {name: part for name, part in held.named_modules() if is_metric(part)}

    def state_dict(self) -> dict[str, Any]:
        if sum(map(is_metric, self.held.modules())) != len(self.parts):
            raise StateError(
                f"a {type(self.held).__qualname__} that grows cannot be restored: leave it out of the state."
            )
        sums = {name: {key: getattr(part, key) for key in part._defaults} for name, part in self.parts.items()}
        counts = {name: part._update_count for name, part in self.parts.items()}
        return {"state": self.held.state_dict(), "sums": sums, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held.load_state_dict(state["state"])
        for name, part in self.parts.items():
            for key, value in state["sums"][name].items():
                setattr(part, key, value)
            part._update_count, part._computed = state["counts"][name], None
            part.to(part.device)  # the loaded sums are on the host


class GeneratorHolder:
    """Saves and restores a random generator of torch, numpy or Python. Each rank has its own."""

    per_rank = True

    def __init__(self, held: Any):
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        if not (states := states_of({"generator": self.held})):
            raise StateError(f"a {type(self.held).__qualname__} has no state that can be read: leave it out.")
        return states

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set_states({"generator": self.held}, state):
            raise ValueError("it was a generator of another kind when it was saved")


def is_metric(thing: Any) -> bool:
    return isinstance(thing, torch.nn.Module) and hasattr(thing, "_update_count") and hasattr(thing, "_defaults")


HOLDERS = (DictHolder, TensorHolder, MetricHolder, GeneratorHolder)


class PerRank:
    """A dict, a tensor or an object whose state differs between ranks. Each rank saves its own."""

    per_rank = True

    def __init__(self, thing: Any):
        self.held = held(thing)
        if isinstance(self.held, HOLDERS):
            self.held.per_rank = True

    def state_dict(self) -> Any:
        return self.held.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.held.load_state_dict(state)


def held(thing: Any) -> Any:
    """Returns a holder for a plain dict, a tensor, a metric or a generator, and any other object itself."""
    if isinstance(thing, PerRank) and isinstance(thing.held, HOLDERS):
        return thing.held
    parts = [*map(is_metric, thing.modules())] if isinstance(thing, torch.nn.Module) else [False]
    if parts[0] or (any(parts) and next(thing.parameters(), None) is None):  # a collection of metrics has no parameters
        return MetricHolder(thing)
    if isinstance(thing, torch.Tensor):
        return TensorHolder(thing)
    if is_generator(thing):
        return GeneratorHolder(thing)
    return DictHolder(thing) if isinstance(thing, dict) and not hasattr(thing, "state_dict") else thing


def noted(state: Mapping[str, Any]) -> Built:
    """Returns references to all objects in the plain parts of the state, by their paths."""
    return {path: _reference(thing) for path, thing in _objects(state)}


def links(state: Mapping[str, Any], built: Built) -> list[list[Any]]:
    """Returns [path, path of the same object, whether the object is new] for each object that is not the one that the
    program has built at its path. state: now. built: the result of noted(), before the training changed the state."""
    known: dict[int, tuple[Path, bool]] = {}
    for path, reference in built.items():
        known.setdefault(id(reference()), (path, False))
    found = []
    for path, thing in _objects(state):
        first, is_new = known.setdefault(id(thing), (path, True))
        if first != path or (is_new and path in built):
            found.append([[*path], [*first], is_new])
    return found


def fill(state: Mapping[str, Any], saved: Mapping[str, Any], built: Built, links: Iterable[list[Any]] = ()) -> None:
    """Fills the dicts of `state` in place with the saved trees, as far as the objects are those that the program has
    built. links: the result of links() at the save."""
    live = {path: thing for path, reference in built.items() if (thing := reference()) is not None}
    known = {tuple(path): (tuple(first), is_new) for path, first, is_new in links}
    made: dict[tuple[Path, bool], Any] = {}

    def put(value: Any, *path: Any) -> Any:
        if not _is_object(value):
            return value
        place = known.get(path, (path, path not in live))
        if path[1:] == () and live.get(place[0]) is not live[path]:
            place = (path, False)  # two dicts that were one dict when they were saved
        if place not in made:
            here = live.get(path if place[1] else place[0])
            made[place] = _filled(here, value, put, path, may_fill=not place[1])
        return made[place]

    for name, holder in state.items():
        if isinstance(holder, DictHolder):
            if not isinstance(saved[name], dict):
                was = type(saved[name]).__name__
                raise StateError(f"{name}: it was a {was} when it was saved, and is a dict here. Build it as it was.")
            put(saved[name], name)


def _filled(live: Any, saved: Any, put: Callable[..., Any], path: Path, *, may_fill: bool) -> Any:
    """Returns the restored object: `live` itself if it may be filled and has the saved kind, and else `saved`."""
    if isinstance(saved, torch.Tensor):
        if not isinstance(live, torch.Tensor):
            return saved
        if not may_fill or live.shape != saved.shape or live.dtype != saved.dtype:
            return saved.to(live.device)
        with torch.no_grad():
            return live.copy_(saved)
    if isinstance(saved, dict):
        pairs = {key: put(item, *path, key) for key, item in saved.items()}
        into = live if may_fill and isinstance(live, dict) else saved
        into.clear()  # the order of the keys is restored, too
        into.update(pairs)
        return into
    if not isinstance(saved, (list, tuple, deque)):  # a numpy array
        fits = type(live) is type(saved) and live.shape == saved.shape and live.dtype == saved.dtype
        if not may_fill or not fits or not live.flags.writeable:
            return saved
        live[...] = saved
        return live
    items = [put(item, *path, i) for i, item in enumerate(saved)]
    if isinstance(saved, tuple):
        same = isinstance(live, tuple) and len(live) == len(items) and all(map(is_, live, items))
        return live if same else tuple(items)
    row = live if may_fill and type(live) is type(saved) else saved
    row.clear()
    row.extend(items)
    return row


def _objects(state: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yields (path, object) for the dicts, lists, arrays and tensors in plain parts of the state. The content of an
    object that has several paths is yielded once."""
    seen: set[int] = set()

    def walk(thing: Any, *path: Any) -> Iterator[tuple[Path, Any]]:
        yield path, thing
        if id(thing) not in seen and isinstance(thing, (dict, list, tuple, deque)):
            seen.add(id(thing))
            for key, item in thing.items() if isinstance(thing, dict) else enumerate(thing):
                if _is_object(item):
                    yield from walk(item, *path, key)

    for name, holder in state.items():
        if isinstance(holder, (DictHolder, TensorHolder)):
            yield from walk(holder.held, name)


def _is_object(value: Any) -> bool:
    """Returns whether a restore must keep the identity of the value."""
    if isinstance(value, tuple):
        return any(map(_is_object, value))
    numpy = sys.modules.get("numpy")
    return isinstance(value, (dict, list, deque, torch.Tensor)) or (
        numpy is not None and isinstance(value, numpy.ndarray)
    )


def _reference(thing: Any) -> Callable[[], Any]:
    """Returns a function that returns the object. Tensors and arrays are not kept alive."""
    return (lambda: thing) if isinstance(thing, (dict, list, tuple)) else weakref.ref(thing)
