"""Reads the values of one swept key: a list, a range such as `range(5)`, or for `random` a distribution."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from clusterdp.config.files import Layer, merge, value_of_text
from clusterdp.errors import ConfigError

FUNCTION = re.compile(r"\s*([a-z]+)\((.*)\)\s*", re.DOTALL)
DISTRIBUTIONS = ("uniform", "log", "choice")
CALL = re.compile(rf"\s*(range|{'|'.join(DISTRIBUTIONS)})\(")
FORMS = "Write a list, range(5), or for sweep.random uniform(0, 1), log(1e-5, 1e-2) or choice(16, 32)"
MOST = 10_000  # limit of a sweep's elements: Slurm's default for MaxJobCount, and a longer table is unreadable


def read_sweeps(words: Sequence[str]) -> Layer:
    """Returns the layer of `KEY=VALUES`: `params.lr=0.1,0.01`, `params.seed=range(5)`, `params.lr=log(1e-5,1e-2)`.

    A comma separates values, which are YAML. A single list is the list of the values."""
    layer = Layer()
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
            raise ConfigError(f"--sweep {word}: is not KEY=VALUES. Write e.g. --sweep params.lr=0.1,0.01.")
        function = FUNCTION.fullmatch(text)
        block = "random" if function and function[1] in DISTRIBUTIONS else "grid"
        if any(key in there for there in layer.values.get("sweep", {}).values()):
            raise ConfigError(f"--sweep {word}: {key} is swept already. Write all its values after one --sweep.")
        values = text.strip() if function else _listed(text, f"--sweep {key}")
        merge(layer.values, {"sweep": {block: {key: values}}})
        layer.sources[f"sweep.{block}.{key}"] = "command line"
    return layer


def _listed(text: str, where: str) -> Any:
    # Quotes words with ${...}: within brackets, YAML does not allow braces in a word without quotes.
    quoted = re.sub(r"(?<![^\s,\[])[^\s,\"'\[\]{]*\$\{[^}]*\}[^\s,\"'\[\]]*", r'"\g<0>"', text)
    try:
        items = value_of_text(f"[{quoted}]", where) if text.strip() else []
    except ConfigError:
        if not re.search(r"^\s*,|,\s*,", text):
            raise
        raise ConfigError(f"{where}: {text} has an empty value between two commas. Write null for none.") from None
    if not isinstance(items, list):  # `1], [2`
        raise ConfigError(f"{where}: {text!r} is not a list of values. {FORMS}.")
    if any(isinstance(item, str) and CALL.match(item) for item in items):
        raise ConfigError(f"{where}: {text} is neither values nor a whole range(...) or log(...) alone. {FORMS}.")
    return items[0] if len(items) == 1 and isinstance(items[0], list) else items


def values_of(given: Any, key: str) -> list[Any]:
    """Returns the values of a key of `grid` or `zip`. A ConfigError names `key`, such as `sweep.grid.params.lr`."""
    _refuse_nested(given, key)
    if isinstance(given, str) and (function := FUNCTION.fullmatch(given)):
        if function[1] == "range":
            return _range(given, function[2], key)
        if function[1] in DISTRIBUTIONS:
            raise ConfigError(f"{key}: {given} is drawn at random. Put it under sweep.random, with sweep.samples.")
        raise ConfigError(f"{key}: there is no {function[1]}(). {FORMS}.")
    if not isinstance(given, list):
        raise ConfigError(f"{key}: {given!r} is one value, not several. {FORMS}.")
    if not given:
        raise ConfigError(f"{key}: has no values. {FORMS}.")
    return given


def _refuse_nested(given: Any, key: str) -> None:
    if isinstance(given, dict):
        name = ".".join(key.split(".")[2:])
        while isinstance(given, dict) and given:
            name, given = f"{name}.{next(iter(given))}", next(iter(given.values()))
        raise ConfigError(f"{key}: has keys below it. Keys here are dotted: write `{name}: {given}`.")


def _range(given: str, inside: str, key: str) -> list[int]:
    try:
        numbers = range(*(int(part) for part in inside.split(",")))
    except (ValueError, TypeError):
        raise ConfigError(
            f"{key}: {given!r} is not range(STOP), range(START, STOP) or range(START, STOP, STEP), of whole numbers. "
            "Correct it."
        ) from None
    if not numbers:
        raise ConfigError(f"{key}: {given} has no numbers in it. Correct it.")
    if len(numbers) > MOST:
        raise ConfigError(f"{key}: {given} has {len(numbers)} numbers; a sweep has {MOST} elements at most.")
    return list(numbers)


def draws_of(given: Any, key: str, samples: int, seed: int) -> list[Any]:
    """Returns `samples` values for a key of `random`. The same seed and the same key give the same values. Numbers are
    rounded to six digits."""
    _refuse_nested(given, key)
    function = FUNCTION.fullmatch(given) if isinstance(given, str) else None
    if not function or function[1] not in DISTRIBUTIONS:
        raise ConfigError(f"{key}: {given!r} is not uniform(0, 1), log(1e-5, 1e-2) or choice(16, 32). Write one.")
    name, arguments = function[1], value_of_text(f"[{function[2]}]", key)
    source = random.Random(f"{seed}/{key}")
    if name == "choice":
        if not isinstance(arguments, list) or not arguments:
            raise ConfigError(f"{key}: {given!r} has nothing to choose from. Write e.g. choice(16, 32).")
        return [source.choice(arguments) for _ in range(samples)]
    draw = _between(name, arguments, f"{key}: {given}", source)
    return [float(f"{draw():.6g}") for _ in range(samples)]


def _between(name: str, bounds: Any, said: str, source: random.Random) -> Callable[[], float]:
    numbers = [bound for bound in bounds if isinstance(bound, (int, float)) and not isinstance(bound, bool)]
    if len(bounds) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1] or not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{said} needs two numbers, the smaller one first. Write e.g. {name}(0.001, 0.1).")
    low, high = numbers
    if name == "uniform":
        return lambda: source.uniform(low, high)
    if low <= 0:
        raise ConfigError(f"{said} starts at {low:g}, which has no logarithm. Write a number above 0.")
    return lambda: math.exp(source.uniform(math.log(low), math.log(high)))
