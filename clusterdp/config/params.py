"""Checks that values of `params:` fit the annotations and defaults of the entry's parameters, at submit and again in
the job.

An annotation is judged by its text, because submit does not import the user's module. Only a clear contradiction is
refused: an annotation with an unknown name (an Enum, a class of the user's own) accepts any value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterdp.errors import EntryError
from clusterdp.wording import did_you_mean

Fits = Callable[[Any, Sequence[ast.expr]], bool]

NUMBERS = (int, float)  # includes True and False, which are numbers in Python
MODULES = {"typing", "t", "tp", "typing_extensions", "collections", "abc", "pathlib", "builtins", "os"}


def check_value(name: str, value: Any, annotation: str | None, default: Any, entry: str) -> None:
    """Raises EntryError if `value` contradicts the annotation. Without an annotation, `value` may not contradict a
    default that is a number or a bool.

    `annotation` is its text, or None. `default` is the default value; if the parameter has no default, or an unknown
    default, `default` is any object that is not a plain value.
    """
    if annotation is None:
        wanted = type(default).__name__
        good = type(default) not in (bool, *NUMBERS) or not isinstance(value, (str, dict))
        said = f"like its default {default!r} in {entry}. Correct it, or annotate {name} there with what it may be"
    else:
        wanted = annotation.strip("'\"")
        good = _fits(value, _parsed(annotation)) or (value is None and default is None)
        said = f"which {entry} takes. Correct it, or the annotation there"
    if not good:
        several = ""
        if isinstance(value, str) and "," in value:
            several = f" A list is written [a, b]; a run for each value: --sweep params.{name}={value}."
        raise EntryError(f"params.{name}: {value!r} is not of type {wanted}, {said}.{several}")


def check_names(taken: Mapping[str, bool], entry: str, params: Mapping[str, Any], any_name: bool = False) -> None:
    """Raises EntryError for a param that the entry does not take, or that is missing. `taken` maps each parameter's
    name to True if a value is required."""
    for name in params:
        if name not in taken and not any_name:
            hint = did_you_mean(name, taken, f"It takes {', '.join(taken) or 'none'}.", prefix="params.")
            raise EntryError(f"params.{name}: {entry} takes no such parameter. {hint}")
    for name, needed in taken.items():
        if needed and name not in params:
            raise EntryError(f"params.{name}: {entry} needs it. Give it a value in params, or a default in {entry}.")


def check_handle(name: str, annotation: str | None, default: Any, entry: str, params: Mapping[str, Any]) -> None:
    """Raises EntryError if the entry's first parameter, which gets the job handle, seems to be meant for a value."""
    if _is_plain(annotation, default):
        raise EntryError(f"entry: {entry} takes {name} first, which would get the job handle. Put job before {name}.")
    if name in params:
        raise EntryError(
            f"params.{name}: {entry} takes {name} first, where it gets the job handle. "
            f"Leave it out, or put job before {name}."
        )


def _is_plain(annotation: str | None, default: Any) -> bool:
    """Returns whether a parameter is meant for a plain value, such as `lr: float`, or `lr=0.1`."""
    if annotation is None:
        return isinstance(default, (str, *NUMBERS))
    parsed = _parsed(annotation)
    return parsed is not None and _name(parsed) in {*SCALARS, *CONTAINERS, "Literal", "Path"}


def _parsed(annotation: str) -> ast.expr | None:
    try:
        parsed = ast.parse(annotation.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if isinstance(parsed, ast.Constant) and isinstance(parsed.value, str):  # x: "float"
        return _parsed(parsed.value)
    return parsed


def _fits(value: Any, wanted: ast.expr | None) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, ast.Constant):
        if isinstance(wanted.value, str):  # an annotation within quotes
            return _fits(value, _parsed(wanted.value))
        return wanted.value is not None or value is None
    if isinstance(wanted, ast.BinOp) and isinstance(wanted.op, ast.BitOr):
        return _fits(value, wanted.left) or _fits(value, wanted.right)
    name, arguments = _name(wanted), _arguments(wanted)
    if name in SCALARS:
        return SCALARS[name](value)
    if name in CONTAINERS:
        return CONTAINERS[name](value, arguments)
    return SPECIAL[name](value, arguments) if name in SPECIAL else True


def _name(wanted: ast.expr) -> str:
    """Returns the name of an annotation: `list` for `list[int]`, `Optional` for `typing.Optional[int]`; empty for a
    name of an unknown module."""
    if isinstance(wanted, ast.Subscript):
        return _name(wanted.value)
    if isinstance(wanted, ast.Attribute):
        module = wanted.value
        known = isinstance(module, ast.Name) and module.id in MODULES
        known |= isinstance(module, ast.Attribute) and module.attr in MODULES  # collections.abc
        return wanted.attr if known else ""
    return wanted.id if isinstance(wanted, ast.Name) else ""


def _arguments(wanted: ast.expr) -> list[ast.expr]:
    if not isinstance(wanted, ast.Subscript):
        return []
    return wanted.slice.elts if isinstance(wanted.slice, ast.Tuple) else [wanted.slice]


def _is_one_of(value: Any, literals: Sequence[ast.expr]) -> bool:
    return any(not isinstance(each, ast.Constant) or each.value == value for each in literals)


def _is_list(value: Any, items: Sequence[ast.expr]) -> bool:
    return isinstance(value, (list, tuple)) and all(_fits(item, items[0]) for item in value if items)


def _is_tuple(value: Any, items: Sequence[ast.expr]) -> bool:
    if not isinstance(value, (list, tuple)):  # YAML has lists, but no tuples
        return False
    if len(items) == 2 and isinstance(items[1], ast.Constant) and items[1].value is ...:
        return _is_list(value, items[:1])
    return not items or (len(items) == len(value) and all(map(_fits, value, items)))


def _is_dict(value: Any, items: Sequence[ast.expr]) -> bool:
    return isinstance(value, dict) and (len(items) != 2 or all(_fits(item, items[1]) for item in value.values()))


SCALARS: dict[str, Callable[[Any], bool]] = {
    "float": lambda value: isinstance(value, NUMBERS),
    "int": lambda value: isinstance(value, int) or (isinstance(value, float) and value.is_integer()),  # 1e3
    "bool": lambda value: isinstance(value, NUMBERS),
    "str": lambda value: isinstance(value, (str, *NUMBERS)),  # numbers, too: YAML reads 2024 as a number
}
CONTAINERS: dict[str, Fits] = {
    **dict.fromkeys(("list", "List", "set", "Set", "frozenset", "FrozenSet", "MutableSequence"), _is_list),
    **dict.fromkeys(("Sequence", "Collection"), lambda value, items: isinstance(value, str) or _is_list(value, items)),
    **dict.fromkeys(("tuple", "Tuple"), _is_tuple),
    **dict.fromkeys(("dict", "Dict", "Mapping", "MutableMapping"), _is_dict),
}
SPECIAL: dict[str, Fits] = {
    "Optional": lambda value, items: value is None or not items or _fits(value, items[0]),
    "Union": lambda value, items: not items or any(_fits(value, item) for item in items),
    "Literal": _is_one_of,
    "Annotated": lambda value, items: not items or _fits(value, items[0]),
    "Path": lambda value, _: not isinstance(value, (list, dict)),
}
