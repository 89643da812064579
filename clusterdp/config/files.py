"""A layer of a config: a YAML file, `key=value` words, or a dictionary. Each value is read with its place.

Error messages and `clusterdp show` print the place (file and line) of a value. Keys are checked here against the tree
of dataclasses, before OmegaConf reads them, because OmegaConf's own errors have neither file nor line.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import numbers
import os
import re
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterdp.config.tree import Config
from clusterdp.config.value_types import misfits
from clusterdp.errors import ConfigError
from clusterdp.wording import did_you_mean

DEEPEST, MOST_NODES = 60, 200_000
TOO_DEEP = "is nested too deeply, or refers to itself. Write the values out."


@dataclass
class Layer:
    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)  # dotted key -> place of its value
    dotted: set[str] = field(default_factory=set)  # of words such as `a.b=1`: a


class OctalError(yaml.YAMLError):
    """Raised for a number such as `010`: YAML 1.1 reads 8, but its author means 10 or a text."""

    def __init__(self, text: str, decimal: int, octal: int):
        self.problem = f"{text} is {octal} to YAML, because of the 0 in front"
        self.remedy = f'Write {decimal}, or "{text}" as text, or {octal}'


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1 as PyYAML reads it, except for two kinds of scalars (_resolvers)."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Returns PyYAML's table of scalar types with two changes: `2:00:00` is text (a time for Slurm, not 7200), and
    `1e-3` is a number, as in OmegaConf."""
    number = re.compile(
        r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(?:inf|Inf|INF))$"
        r"|\.(?:nan|NaN|NAN)$"
    )
    whole = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[\da-fA-F_]+|0|[1-9][\d_]*)$")
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items():
        kept = [(tag, regex) for tag, regex in pairs if not tag.endswith((":int", ":float"))]
        if first in "-+.0123456789":
            kept += [("tag:yaml.org,2002:int", whole), ("tag:yaml.org,2002:float", number)]
        table[first] = kept
    return table


def _whole_number(loader: Any, node: Any) -> int:
    value = int(loader.construct_yaml_int(node))
    if re.fullmatch(r"[-+]?0[0-7]+", node.value) and (decimal := int(node.value)) != value:
        raise OctalError(node.value, decimal, value)
    return value


_Loader.yaml_implicit_resolvers = _resolvers()
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def read_file(path: Path, schema: type, **defaults: Any) -> Layer:
    """Returns the layer of a YAML file, merged over the files that its `defaults:` names. `defaults` has values for
    keys that no file sets."""
    layer = _file(path, schema, ())
    for key, value in defaults.items():
        layer.values.setdefault(key, value)
    return layer


def _file(path: Path, schema: type, above: tuple[Path, ...]) -> Layer:
    """Returns the layer of one file, merged over its defaults. `above` has the files whose `defaults:` led to this
    file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. Name a YAML file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: it is not UTF-8 text{_encoding_of(error.object, path)}") from None
    own = Layer()
    try:
        node = _compose(text, str(path))
        if node is None:
            return own
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}:1: is not a mapping. Write `key: value` lines.")
        own.values = _mapping(node, schema, (), lambda n: f"{path}:{n.start_mark.line + 1}", own.sources)
    except ConfigError:
        for number, line in enumerate(text.splitlines(), 1):
            if found := re.match(r"[^'\"#]*([\u00a0\u2000-\u200b\u202f\u3000])", line):
                blank = f"U+{ord(found[1]):04X}, which only looks like a blank"
                raise ConfigError(f"{path}:{number}: has the character {blank}. Write a blank.") from None
        raise
    named = own.values.pop("defaults", [])
    place = own.sources.pop("defaults", "")
    layer = Layer()
    for word in named:
        if not word.strip() or "${" in word:
            raise ConfigError(
                f"{place}: defaults: {word!r} is not a path. Nothing is filled in there: write a file's name."
            )
        below = Path(os.path.normpath(path.parent / Path(word).expanduser()))
        if below.resolve() in [each.resolve() for each in (*above, path)]:
            raise ConfigError(f"{place}: defaults: {word} leads back to {below}. Remove one of the two.")
        if not below.is_file():
            raise ConfigError(f"{place}: defaults: there is no file {below}. A path counts from the folder of {path}.")
        _put(layer, _file(below, schema, (*above, path)))
    _put(layer, own)
    return layer


def _encoding_of(data: bytes, path: Path) -> str:
    """Returns the end of an error message: the encoding that the file seems to have, and the remedy."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        found = "UTF-16"
    elif b"\0" not in data:
        found = "ISO-8859-1"
    else:
        return ". Name a YAML file."
    return f", but {found}, as it seems. Save it as UTF-8: iconv -f {found} -t UTF-8 {path} > NEW."


def _put(layer: Layer, more: Layer) -> None:
    merge(layer.values, more.values)
    layer.sources |= more.sources


def read_words(words: Sequence[str], schema: type) -> Layer:
    """Returns the layer of `key=value` words. A value is YAML, as in a file: `a=[1,2]`, `a=null`, `a=1e-3`."""
    layer = Layer()
    for word in words:
        key, equals, text = word.partition("=")
        if key[:1] in ("+", "~"):
            raise ConfigError(f"{word}: a key has no {key[0]} in front. Write {word.lstrip('+~')}.")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
            raise ConfigError(f"{word}: is not key=value. Write e.g. params.lr=0.1 or resources.nodes=2.")
        if key == "defaults":
            raise ConfigError(f"{word}: only a file can have defaults. Write them into one.")
        node = _compose(text, f"command line, {key}") or yaml.ScalarNode("tag:yaml.org,2002:null", "")
        layer.dotted |= above(key)
        for part in reversed(key.split(".")):
            name = yaml.ScalarNode("tag:yaml.org,2002:str", part)
            node = yaml.MappingNode("tag:yaml.org,2002:map", [(name, node)])
        merge(layer.values, _mapping(node, schema, (), lambda n: "command line", layer.sources), layer.dotted)
    return layer


def read_mapping(values: Mapping[str, Any], schema: type, place: str = "Python") -> Layer:
    """Returns the layer of a dictionary. `place` names the source of the dictionary, for messages."""
    if "defaults" in values:
        raise ConfigError("defaults: only a file can have them. Read a file, or merge the dictionaries.")
    node = _compose(yaml.safe_dump(_plain(values, place)), "config") or yaml.MappingNode("tag:yaml.org,2002:map", [])
    layer = Layer()
    layer.values = _mapping(node, schema, (), lambda n: place, layer.sources)
    return layer


def value_of_text(text: str, where: str) -> Any:
    """Returns the value of YAML text, as in a file. The text of a ConfigError begins with `where`."""
    node = _compose(text, where)
    return None if node is None else _value(node, where)


def check_key(key: str, value: Any, schema: type, place: str) -> None:
    """Raises ConfigError if the tree has no such dotted key, or if the value does not have the key's type."""
    parts = key.split(".")
    hint: Any = schema
    for i, part in enumerate(parts):
        path = ".".join(parts[: i + 1])
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            hints = _hints_of(hint)
            if part not in hints:
                raise ConfigError(f"{place}: {path}: there is no such key. {_meant(part, tuple(parts[: i + 1]), hint)}")
            hint = hints[part]
        elif hint is Any or typing.get_origin(hint) is dict:
            hint = typing.get_args(hint)[1] if typing.get_args(hint) else Any
        else:
            above = ".".join(parts[:i])
            raise ConfigError(f"{place}: {path}: {above} has no keys below it. Write {above}.")
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        first = dataclasses.fields(hint)[0].name
        raise ConfigError(f"{place}: {key}: has keys of its own. Name one of them, as {key}.{first}.")
    if str in (hint, *typing.get_args(hint)) and isinstance(value, (int, float)) and not isinstance(value, bool):
        return  # a key for text also takes a number
    _check_type(value, hint, key, place, {})


_hints_of = functools.cache(typing.get_type_hints)


def _plain(value: Any, place: str, key: str = "") -> Any:
    """Returns a value of Python as YAML has it. Raises ConfigError for others: yaml itself makes a mapping of a set."""
    if isinstance(value, Mapping):
        return {name: _plain(item, place, f"{key}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, place, f"{key}[{number}]") for number, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str, bytes) or isinstance(value, datetime.date):
        return value
    if isinstance(value, numbers.Real):  # numpy's
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{place}: {key}: is a {type(value).__name__}. Write text, a number, a list or a mapping.")


def above(key: str) -> set[str]:
    """Returns `a` and `a.b` for a key a.b.c."""
    return {*itertools.accumulate(key.split(".")[:-1], "{}.{}".format)}


def merge(into: dict[str, Any], more: Mapping[str, Any], dotted: Collection[str] = (), at: str = "") -> None:
    """Merges `more` into `into`, at the key `at`. Mappings are merged key by key; any other value is replaced, even a
    list. dotted: the keys that words such as `a.0=1` go into: if `a` is a list, its item is replaced."""
    for key, value in more.items():
        old, path = into.get(key), f"{at}{key}"
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value, dotted, f"{path}.")
        elif isinstance(value, dict) and isinstance(old, list) and path in dotted:
            items = dict(zip(map(str, range(len(old))), old, strict=True))
            if wrong := min(value.keys() - items.keys(), default=""):
                remedy = f"Write all of it: {path}=[...]"
                raise ConfigError(f"{path}.{wrong}: {path} is a list of {len(old)}, counted from 0. {remedy}.")
            merge(items, value, dotted, f"{path}.")
            into[key] = [*items.values()]
        else:
            into[key] = value


def _compose(text: str, where: str) -> Any:
    try:
        return compose(text, _Loader, where)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        if mark and text.splitlines()[mark.line : mark.line + 1] and "\t" in _indentation(text.splitlines()[mark.line]):
            raise ConfigError(f"{where}{line}: begins with a tab. YAML takes blanks alone there: write them.") from None
        raise ConfigError(f"{where}{line}: is not YAML: {problem}. Check indentation and quotes there.") from None


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def compose(text: str, loader: Any, where: str) -> Any:
    """Returns the result of yaml.compose(), after a check of the depth: the recursion of yaml.compose() in C crashes on
    too many levels."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ConfigError(f"{where}: {TOO_DEEP}")
    node = yaml.compose(text, Loader=loader)
    _check_size(node, where)
    return node


def _check_size(node: Any, where: str) -> None:
    """Raises ConfigError for a tree that is too large: an alias may contain itself, and a dozen lines of aliases may
    stand for 1,000 million values."""
    seen, todo = 0, [(node, 0)]
    while todo:
        node, depth = todo.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_NODES:
            raise ConfigError(f"{where}: {TOO_DEEP}")
        if isinstance(node, yaml.MappingNode):
            todo += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += [(part, depth + 1) for part in node.value]


def _mapping(
    node: Any, schema: type | None, at: tuple[str, ...], place: Any, sources: dict[str, str]
) -> dict[str, Any]:
    """Returns a mapping node as a dictionary. The keys are checked against the dataclass `schema`; if `schema` is None,
    any keys are allowed."""
    hints = typing.get_type_hints(schema) if schema else {}
    textual = {f.name for f in dataclasses.fields(schema) if f.metadata.get("text")} if schema else set()
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _key(key_node, at, place)
        path = (*at, key)
        dotted = ".".join(path)
        if schema and key not in hints:
            raise ConfigError(f"{place(key_node)}: {dotted}: there is no such key. {_meant(key, path, schema)}")
        if key in result:
            raise ConfigError(f"{place(key_node)}: {dotted}: is there twice. Keep one of the two.")
        hint = hints.get(key)
        if isinstance(value_node, yaml.MappingNode) and (schema is None or dataclasses.is_dataclass(hint)):
            inner = hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None
            result[key] = _mapping(value_node, inner, path, place, sources)
            if not value_node.value:
                sources[dotted] = place(value_node)
            continue
        if typing.get_origin(hint) in (dict, list) and value_node.tag.endswith(":null"):
            continue  # a line such as `params:` without values
        if schema and isinstance(value_node, yaml.MappingNode) and typing.get_origin(hint) is dict:
            texts = typing.get_args(hint)[1] is str
            result[key] = _mapping(_texts(value_node) if texts else value_node, None, path, place, sources)
            _check_type(result[key], hint, dotted, place(value_node), sources)
            continue
        if dataclasses.is_dataclass(hint):
            if value_node.tag.endswith(":null"):
                continue  # a line such as `resources:` without values
            example = f"{dotted}.{dataclasses.fields(hint)[0].name}=..."
            raise ConfigError(f"{place(value_node)}: {dotted}: has keys of its own, not a value. Write e.g. {example}")
        sources[dotted] = place(value_node)
        inside = typing.get_args(hint)[1:] if typing.get_origin(hint) is dict else typing.get_args(hint)
        as_text = key in textual or str in (hint, *inside)
        result[key] = _value(_texts(value_node) if as_text else value_node, f"{place(value_node)}: {dotted}")
        if schema:
            _check_type(result[key], hint, dotted, place(value_node), sources)
    return result


def _key(node: Any, at: tuple[str, ...], place: Any) -> str:
    if not isinstance(node, yaml.ScalarNode):
        where = ".".join(at) or "a key"
        raise ConfigError(f"{place(node)}: {where}: a key there is a list or a mapping. Write a word.")
    if node.tag.endswith(":merge"):
        dotted = ".".join((*at, str(node.value)))
        raise ConfigError(f"{place(node)}: {dotted}: merge keys are not read. Write them out.")
    return str(node.value)


def _check_type(value: Any, hint: Any, dotted: str, place: str, sources: Mapping[str, str]) -> None:
    for key, problem, remedy in misfits(value, hint, dotted):
        raise ConfigError(f"{sources.get(key, place)}: {key}: {problem}. {remedy}.")


def _texts(node: Any) -> Any:
    """Returns the node with its scalars as text. If the key's type is text, `account: no`, `time: 30` and `command:
    [prog, 1e-3]` are words, not values."""
    text = "tag:yaml.org,2002:str"
    if isinstance(node, yaml.ScalarNode):
        return node if node.tag.endswith(":null") else yaml.ScalarNode(text, node.value, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):
        return yaml.SequenceNode(node.tag, [_texts(n) for n in node.value], node.start_mark, node.end_mark)
    pairs = [(key, _texts(value)) for key, value in node.value]
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark)


def _value(node: Any, where: str) -> Any:
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: invalid date, or 5,000 digits
        shown = str(node.value)[:60]
        problem = getattr(error, "problem", None) or "it cannot be read as a value"
        remedy = getattr(error, "remedy", "Put it in quotes, or write another")
        shown = "" if isinstance(error, OctalError) else f"{shown}: "
        raise ConfigError(f"{where}: {shown}{problem}. {remedy}.") from None
    finally:
        loader.dispose()


def _meant(key: str, path: tuple[str, ...], schema: type) -> str:
    names = [f.name for f in dataclasses.fields(schema)]
    if path[0] == "sweep" and key.partition(".")[0] in _hints_of(Config):
        return f"Write it below grid: sweep: {{grid: {{{key}: [...]}}}}, with dots down to the value."
    if len(path) == 1 or path[0] in ("resources", "launch", "train"):
        from clusterdp.config.foreign_keys import remedy_for

        if remedy := remedy_for(key):
            return remedy
    if meant := did_you_mean(key, names, prefix="".join(f"{part}." for part in path[:-1])):
        return meant
    from clusterdp.config.explain import key_named

    if meant := key_named(key.removeprefix("slurm_")):  # submitit's prefix
        return f"Did you mean {meant}?"
    where = ".".join(path[:-1]) or "the top level"
    return f"Keys of {where}: {', '.join(names)}. What your code takes goes under params."
