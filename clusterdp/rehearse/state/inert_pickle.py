"""Pickles, read without running anything of theirs.

Whatever a pickle names, be it a class or a function, stands here for itself: a class of ours that was made for that
name. Calling it keeps the arguments, and nothing is imported. plain_values.py says what the known ones mean.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any


class Inert:
    """What a pickle would have made by calling `path` with `args`, and what it would have put into that."""

    path = ""
    args: tuple[Any, ...]
    named: dict[str, Any]
    listed: list[Any]
    items: dict[Any, Any]
    state: Any

    def __new__(cls, *args: Any, **named: Any) -> Inert:
        made = object.__new__(cls)
        made.args, made.named, made.listed, made.items, made.state = args, named, [], {}, None
        return made

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    # What the opcodes of an unpickler call on the object that they fill.
    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.listed.append(item)

    add = append

    def extend(self, items: Iterable[Any]) -> None:
        self.listed.extend(items)

    def __setitem__(self, key: Any, item: Any) -> None:
        self.items[key] = item


class Storage:
    """A persistent id: in files of torch.save() that is ("storage", type, key, location, number of elements)."""

    def __init__(self, about: Any):
        self.about = about


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes):
        # latin1: strings of Python 2 are bytes, and this loses none.
        super().__init__(io.BytesIO(data), encoding="latin1")
        self._made: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> type[Inert]:
        # A class, for NEWOBJ takes nothing else; one for each name and pickle, so that BUILD can change nothing else.
        path = f"{module}.{name}"
        if path not in self._made:
            self._made[path] = type("Inert", (Inert,), {"path": path})
        return self._made[path]

    def persistent_load(self, pid: Any) -> Storage:
        return Storage(pid)


def load(data: bytes) -> Any:
    """The tree in a pickle: plain values, Inert, Storage. Raises ValueError if it is damaged, or none."""
    try:
        return _Unpickler(data).load()
    except MemoryError:
        raise ValueError("it asks for more memory than there is") from None
    except Exception as error:  # whatever an unpickler makes of any bytes
        raise ValueError(f"{error}" or type(error).__name__) from None
