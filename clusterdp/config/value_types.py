"""Checks that a value has the type of its key, with clusterdp's own messages, before OmegaConf converts the value."""

from __future__ import annotations

import datetime
import json
import math
import re
import shlex
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from clusterdp.wording import unit_of

Misfit = tuple[str, str, str]  # (key, problem, remedy)

WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PLAIN = re.compile(r"[\w./-]+")  # a word that needs no quotes in a YAML list
PER_UNIT = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "ms": 0.001}


def misfits(value: Any, hint: Any, key: str) -> Iterator[Misfit]:
    """Yields a Misfit for each value, at `key` or below, that does not have its type in the tree of dataclasses."""
    if isinstance(value, str) and "${" in value:
        return  # the value of a `${...}` is known later
    optional, hint = without_none(hint)
    if hint is Any:
        yield from _unreadable(value, key)
    elif value is None:
        if not optional:
            yield key, "has no value", "Give one, or leave the line out"
    elif typing.get_origin(hint) is list:
        yield from _misfits_of_list(value, typing.get_args(hint)[0], key)
    elif typing.get_origin(hint) is dict:
        yield from _misfits_of_mapping(value, typing.get_args(hint)[1], key)
    elif not _is_a(hint, value):
        yield key, f"{_shown(value)} is not {WANTED[hint]}", _remedy(hint, value, key)


def without_none(hint: Any) -> tuple[bool, Any]:
    """Returns whether a type hint allows None, and the hint without it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return len(kinds) < len(typing.get_args(hint)), kinds[0]
    return hint is Any, hint


def _misfits_of_list(value: Any, kind: Any, key: str) -> Iterator[Misfit]:
    if not isinstance(value, list):
        yield key, f"{_shown(value)} is not a list", f"Write {key.rpartition('.')[2]}: [{_as_items(value)}]"
        return
    for number, item in enumerate(value):
        yield from misfits(item, kind, f"{key}[{number}]")


def _as_items(value: Any) -> str:
    """Returns the words of a text as items of a list, split as by a shell: `mail, me` for `mail me`."""
    if not isinstance(value, str):
        return str(value) if isinstance(value, (int, float)) else "..."
    try:
        words = shlex.split(value)
    except ValueError:  # a quote that is not closed
        return json.dumps(value, ensure_ascii=False)
    return ", ".join(word if PLAIN.fullmatch(word) else json.dumps(word, ensure_ascii=False) for word in words)


def _misfits_of_mapping(value: Any, kind: Any, key: str) -> Iterator[Misfit]:
    if not isinstance(value, Mapping):
        remedy = f"Write {key.rpartition('.')[2]}: {{name: value}}, or a line `name: value` for each"
        yield key, f"{_shown(value)} is not a mapping", remedy
        return
    for name, item in value.items():
        yield from misfits(item, kind, f"{key}.{name}")


def _unreadable(value: Any, key: str) -> Iterator[Misfit]:
    """Yields a Misfit for each YAML value that JSON and OmegaConf cannot represent."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        yield key, f"{value} is read as a date", f'Put it in quotes: "{value}"'
    elif isinstance(value, bytes):
        yield key, f"is of YAML's type {type(value).__name__}", "Write text, a number, a list or a mapping"
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unreadable(item, f"{key}[{number}]")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                yield f"{key}.{name}", f"{name!r} is not text, as names are", f'Put it in quotes: "{name}"'
            yield from _unreadable(item, f"{key}.{name}")


def _is_a(hint: Any, value: Any) -> bool:
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
    return isinstance(value, str)


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _remedy(hint: Any, value: Any, key: str) -> str:
    name = key.rpartition(".")[2]
    if hint is bool:
        return f"Write {name}: true, or false"
    if hint is str:
        return f'Write {name}: "..."'
    unit = unit_of(name)
    amount = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", value) if isinstance(value, str) else None
    if unit == "seconds" and amount and amount[2] in PER_UNIT:
        return f"It counts seconds: write {float(amount[1]) * PER_UNIT[amount[2]]:g}"
    if isinstance(value, float) and value.is_integer() and hint is int:
        return f"Write {name}: {int(value)}"
    from clusterdp.config.explain import explanations

    return f"Write {name}: {'a number of ' + unit if unit else 'a number'}" + "".join(
        f", such as {each.example}" for each in explanations() if each.key == key
    )
