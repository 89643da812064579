"""The elements of a sweep: the values of each element, and its config.

The first config is resolved as for a single run. For each further element, only the sections that have a swept key or a
`${...}` are resolved again: 1,000 elements take a second.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterdp.config.files import above, check_key, merge
from clusterdp.config.load import BLOCKS, Given, as_words, explain, from_plain, merged, refuse_shell_text, resolve
from clusterdp.config.swept_values import MOST, draws_of, values_of
from clusterdp.config.tree import Config, SweepConfig
from clusterdp.errors import ConfigError

LONG = 60  # the largest number of characters of a value in a message
Values = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Element:
    """One element of a sweep. Its `config` has no section `sweep:`."""

    number: int
    values: Values
    config: Config

    def __str__(self) -> str:
        return f"element {self.number} ({in_words(self.values)})"


@dataclass(frozen=True)
class Sweep:
    """All elements (at least one), and the settings of the sweep as a whole."""

    settings: SweepConfig
    elements: Sequence[Element]

    @property
    def keys(self) -> list[str]:
        return list(self.elements[0].values)


def in_words(values: Mapping[str, Any]) -> str:
    """Returns `params.lr=0.1 params.seed=3`, in the same form as on the command line."""
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return " ".join(f"{key}={text if len(text) <= LONG else text[: LONG - 3] + '...'}" for key, text in texts.items())


def resolve_sweep(given: Given) -> Sweep:
    """Returns the sweep that a config describes. Raises ConfigError for a mistake in `sweep:`, or for an invalid value,
    with the element that has the value."""
    settings = _settings(given)
    rows = _rows(settings, given)
    first = resolve(_given_with(given, rows[0])).config
    elements = [Element(0, rows[0], replace(first, sweep=SweepConfig()))]
    elements += _further(given, elements[0], rows)
    return Sweep(settings, elements)


def _settings(given: Given) -> SweepConfig:
    """Returns the section `sweep:`. A `${...}` in a swept value is resolved later, in each element."""
    from clusterdp.config import checks

    settings = from_plain(SweepConfig, given.values["sweep"])
    checks.check(Config(command="true", sweep=settings), given.sources)
    return settings


def _rows(settings: SweepConfig, given: Given) -> list[Values]:
    blocks = [_of_grid(settings.grid), _of_zip(settings.zip), _of_points(settings.points), _of_random(settings)]
    blocks = [block for block in blocks if block]
    keys = [key for block in blocks for key in block[0]]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError(f"sweep: {key} is in two of {', '.join(BLOCKS)}. Keep one.")
    for key, other in itertools.permutations(keys, 2):
        if other.startswith(f"{key}."):
            raise ConfigError(f"sweep: {other} is a part of {key}, which is swept as well. Keep one.")
    count = 1
    for block in blocks:
        count *= len(block)
    if count > MOST:
        raise ConfigError(f"sweep: has {count} elements; {MOST} are the most. Take fewer values, or draw some: random.")
    rows = [dict(itertools.chain.from_iterable(row.items() for row in each)) for each in itertools.product(*blocks)]
    _check_values(rows, given)
    _refuse_twins(rows)
    return rows


def _of_grid(grid: Mapping[str, Any]) -> list[Values]:
    if not grid:
        return []
    columns = [values_of(given, f"sweep.grid.{key}") for key, given in grid.items()]
    count = 1
    for column in columns:
        count *= len(column)
    if count > MOST:
        sizes = " x ".join(str(len(column)) for column in columns)
        raise ConfigError(f"sweep.grid: {sizes} are {count} elements; {MOST} are the most. Take fewer values.")
    return [dict(zip(grid, row, strict=True)) for row in itertools.product(*columns)]


def _of_zip(zipped: Mapping[str, Any]) -> list[Values]:
    columns = {key: values_of(given, f"sweep.zip.{key}") for key, given in zipped.items()}
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{key} has {len(column)}" for key, column in columns.items())
        raise ConfigError(f"sweep.zip: the lists are not of one length: {sizes}. Make them equal, or use sweep.grid.")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _of_points(points: Sequence[Mapping[str, Any]]) -> list[Values]:
    for number, point in enumerate(points):
        if point.keys() != points[0].keys() or not point:
            has, wanted = ", ".join(point) or "no keys", ", ".join(points[0]) or "keys"
            raise ConfigError(f"sweep.points[{number}]: has {has}, not {wanted}. Give all points the same keys.")
    return [dict(point) for point in points]


def _of_random(settings: SweepConfig) -> list[Values]:
    if not settings.random:
        return []
    count = settings.samples or 0
    if count > MOST:
        raise ConfigError(f"sweep.samples: {count} are more than {MOST}. Draw fewer.")
    rows: dict[str, Values] = {}
    for tries in (1, 2, 4, 8, 16, 32):  # more draws begin with the same values, and replace those that came twice
        draws = tries * count
        columns = [
            draws_of(given, f"sweep.random.{key}", draws, settings.seed) for key, given in settings.random.items()
        ]
        for row in zip(*columns, strict=True):
            rows.setdefault(repr(row), dict(zip(settings.random, row, strict=True)))
        if len(rows) >= count:
            return [*rows.values()][:count]
    raise ConfigError(
        f"sweep.samples: {count} are more than sweep.random has different values: {len(rows)}. Draw fewer."
    )


def _check_values(rows: Sequence[Values], given: Given) -> None:
    """Raises ConfigError if a key does not exist, or if a value does not have the type of its key."""
    places = _places(given)
    for key in rows[0]:
        if key.partition(".")[0] == "sweep":
            raise ConfigError(f"{places.get(key, 'sweep')}: {key}: is one value for the whole sweep. Do not sweep it.")
        seen = {repr(row[key]): row[key] for row in rows}
        for value in seen.values():
            check_key(key, value, Config, places.get(key, "sweep"))
            if key == "command":
                refuse_shell_text(value, places.get(key, "sweep"))


def _refuse_twins(rows: Sequence[Values]) -> None:
    seen: dict[str, int] = {}
    for number, row in enumerate(rows):
        twin = seen.setdefault(repr(row), number)
        if twin != number:
            raise ConfigError(f"sweep: elements {twin} and {number} are the same ({in_words(row)}). Remove one.")


def _given_with(given: Given, row: Values) -> Given:
    """Returns the given layers, with the values of one element instead of `sweep:`."""
    values: dict[str, Any] = {}
    merge(values, {key: value for key, value in given.values.items() if key != "sweep"})
    for key, value in row.items():
        nested = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        merge(values, nested, above(key))
    return replace(given, values=values, sources={**given.sources, **_places(given)})


def _places(given: Given) -> dict[str, str]:
    """Returns the place of the values of each swept key: key -> `cfg.yaml:7`."""
    found = {}
    for name, place in given.sources.items():
        section, _, rest = name.partition(".")
        block, _, key = rest.partition(".")
        if section == "sweep" and block in BLOCKS and key:
            found[key] = place
    return found


def _further(given: Given, first: Element, rows: Sequence[Values]) -> Iterator[Element]:
    from clusterdp.config import checks

    if len(rows) == 1:
        return
    with_first = _given_with(given, rows[0])
    sections = {key.partition(".")[0] for key in rows[0]}
    sections |= {name for name, value in with_first.values.items() if "${" in repr(value)}
    if _follows_each(given):
        sections.add("after")
    changes = _of_params if sections == {"params"} and all(map(_is_plain, rows)) else _resolved
    for number, (row, changed) in enumerate(zip(rows[1:], changes(with_first, first, rows, sections), strict=True), 1):
        element = Element(number, row, replace(first.config, **changed))
        try:
            checks.check(element.config, with_first.sources, sections)
        except ConfigError as error:
            raise ConfigError(f"{element}: {error}") from None
        element.config.entry = given.importable(element.config.entry)
        yield element


def _follows_each(given: Given) -> bool:
    """Returns whether each element follows its own element of another sweep: `${after.run_dir}` then differs."""
    return bool((given.values.get("after") or {}).get("runs", [{}])[0].get("state") == "each")


def _is_plain(row: Values) -> bool:
    """Returns whether these values of params can be used as they are, without resolving or conversion."""
    return not re.search(r"\.\d", " ".join(row)) and all(  # an item of a list is not a key of a mapping
        value is None
        or type(value) in (bool, int, float)
        or (type(value) is str and not re.search(r"\$\{|\?{3}", value))
        for value in row.values()
    )


def _of_params(given: Given, first: Element, rows: Sequence[Values], sections: Collection[str]) -> Iterator[Values]:
    """Yields the params of each element, like OmegaConf, but ten times as fast."""
    for row in rows[1:]:
        params = dict(first.config.params)
        for key, value in row.items():
            *path, last = key.split(".")[1:]
            within = params
            for part in path:
                within[part] = dict(within[part])  # a copy, so that the first element keeps its values
                within = within[part]
            within[last] = value
        yield {"params": params}


def _resolved(given: Given, first: Element, rows: Sequence[Values], sections: Collection[str]) -> Iterator[Values]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree = merged(given)
    for number, row in enumerate(rows[1:], start=1):
        try:
            for key, value in row.items():
                OmegaConf.update(tree, key, value, merge=False, force_add=True)
            if "after" in sections:
                OmegaConf.update(tree, "after.run_dir", f"{given.values['after']['runs'][0]['run']}/{number}")
            yield {name: _plain(tree, name) for name in sections}
        except OmegaConfBaseException as error:
            raise ConfigError(f"element {number} ({in_words(row)}): {explain(error, given.sources)}") from None


def _plain(tree: Any, name: str) -> Any:
    from omegaconf import OmegaConf

    value = tree[name]
    value = OmegaConf.to_object(value) if OmegaConf.is_config(value) else value
    return as_words(value) if name in ("command", "script") else value
