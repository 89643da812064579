"""Optimizers in an end state, recognized by the form of torch's optimizer state, and their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from clusterdp.rehearse.state.end_state import Leaf
from clusterdp.wording import counted, some_of

_GROUPS = re.compile(r"(?P<prefix>.*?)param_groups\.\d+\.")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer whose state is in an end state."""

    prefix: str  # the text with which the optimizer's keys begin, with the final dot or colon
    count: int  # the number of the optimizer's parameters
    shapes: tuple[Shape, ...] = ()  # the shapes of the optimizer's parameters, as far as their state has them
    params: tuple[str, ...] = ()  # names of the parameters; empty unless the shapes fit exactly one place

    @property
    def name(self) -> str:
        return self.prefix.rstrip(".:").rpartition(":")[2] or "the optimizer"

    @property
    def words(self) -> str:
        """The optimizer in words such as `opt_d (the optimizer of dis.weight, dis.bias)`."""
        of = some_of(self.params, 3) if self.params else counted(self.count, "parameter")
        return f"{self.name} (of {of})" if self.name == "the optimizer" else f"{self.name} (the optimizer of {of})"


def mark_optimizers(values: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Returns the leaves, with the part `optimizer` for all leaves of optimizers.

    Learning rates keep the part `scheduler`.
    """
    beginnings = tuple(f"{prefix}{word}." for prefix in _prefixes(values) for word in ("state", "param_groups"))
    return {
        key: replace(leaf, part="optimizer") if key.startswith(beginnings) and leaf.part != "scheduler" else leaf
        for key, leaf in values.items()
    }


def optimizers_of(values: Mapping[str, Leaf]) -> dict[str, Optimizer]:
    """Returns the optimizers in an end state by their prefix."""
    return {prefix: _optimizer(values, prefix) for prefix in _prefixes(values)}


def prefix_of(key: str, prefixes: Iterable[str]) -> str | None:
    """Returns the prefix of the optimizer that a key belongs to, or None."""
    found = [each for each in prefixes if key.startswith((f"{each}state.", f"{each}param_groups."))]
    return max(found, key=len, default=None)


def _prefixes(values: Mapping[str, Leaf]) -> list[str]:
    return [*dict.fromkeys(found["prefix"] for key in values if (found := _GROUPS.match(key)))]


def _optimizer(values: Mapping[str, Leaf], prefix: str) -> Optimizer:
    shapes: dict[str, Shape] = {}
    count = 0
    for key, leaf in values.items():
        words = key.removeprefix(prefix).split(".")
        if not key.startswith(prefix) or len(words) < 3:
            continue
        if words[0] == "param_groups" and words[2] == "params":
            count += leaf.shape[0] if leaf.kind == "numbers" else 1
        elif words[0] == "state" and leaf.kind == "tensor":
            shapes[words[1]] = max(shapes.get(words[1], ()), leaf.shape, key=len)
    found = tuple(shapes.values())
    return Optimizer(prefix, count, found, _params(values, found) if len(found) == count else ())


def _params(values: Mapping[str, Leaf], shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Returns the names of model tensors with these shapes in this order, if only one place of the model has them."""
    models = [(key, leaf.shape) for key, leaf in values.items() if leaf.part == "model" and leaf.kind == "tensor"]
    size = len(shapes)
    places = [
        models[at : at + size]
        for at in range(len(models) - size + 1)
        if all(shape == of for (_, of), shape in zip(models[at : at + size], shapes, strict=True))
    ]
    return tuple(key for key, _ in places[0]) if len(places) == 1 and size else ()
