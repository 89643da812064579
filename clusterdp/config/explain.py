"""`clusterdp show --explain`: the meaning of each key, from the comment of its field in tree.py."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clusterdp.config import tree as config_module
from clusterdp.config.tree import Config
from clusterdp.config.value_types import unit_of
from clusterdp.errors import ConfigError
from clusterdp.wording import did_you_mean


@dataclass(frozen=True)
class KeyExplanation:
    """The explanation of one key."""

    key: str
    kind: str  # its type in tree.py
    default: Any
    meaning: str
    example: str  # YAML
    unit: str

    def __str__(self) -> str:
        default = "none" if self.default is None else _yaml(self.default)
        default = "" if "default:" in self.meaning else f"; default: {default}"
        unit = f"{self.unit}: " if self.unit and self.unit not in self.meaning else ""
        name = self.key.rpartition(".")[2]
        return f"{self.key}\n    {unit}{self.meaning}{default}\n    e.g. {name}: {self.example}"


def explain(key: str = "") -> str:
    """Explains the key, all keys below it, or all keys. Raises ConfigError, with a similar key, if there is none."""
    everything = list(explanations())
    found = [one for one in everything if not key or one.key == key or one.key.startswith(f"{key}.")]
    if not found:
        meant = key_named(key.rpartition(".")[2]) or key
        remedy = did_you_mean(meant, [one.key for one in everything], "`clusterdp show --explain` lists all.")
        raise ConfigError(f"{key}: there is no such key. {remedy}")
    return "\n".join(map(str, found))


def key_named(name: str) -> str:
    """Returns the key with this last word, such as `resources.nodes` for `nodes`; empty if there is none."""
    return next((one.key for one in explanations() if one.key.rpartition(".")[2] == name), "")


def explanations(tree: Any = None, above: str = "") -> Iterator[KeyExplanation]:
    """Yields the explanations of all keys. tree: a section with its defaults; by default the whole config."""
    tree = Config() if tree is None else tree
    comments = _comments(type(tree))
    for field in dataclasses.fields(tree):
        key, default = f"{above}{field.name}", getattr(tree, field.name)
        if dataclasses.is_dataclass(default):
            yield from explanations(default, f"{key}.")
            continue
        meaning, _, example = comments.get(field.name, "").partition("; e.g. ")
        example = str(not default).lower() if isinstance(default, bool) else example.strip().strip("`")
        yield KeyExplanation(key, str(field.type), default, meaning, example, unit_of(field.name))


def _comments(tree: type) -> dict[str, str]:
    """Returns the comment of each field: at the end of its line, or on the lines above it."""
    lines = inspect.getsource(config_module).splitlines()
    found = {}
    for node in ast.parse("\n".join(lines)).body:
        if not isinstance(node, ast.ClassDef) or node.name != tree.__name__:
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                behind = re.search(r"  # (.*)$", lines[field.lineno - 1])
                found[field.target.id] = behind[1] if behind else _above(lines[: field.lineno - 1])
    return found


def _above(lines: list[str]) -> str:
    """Returns the comment at the end of these lines."""
    comment = itertools.takewhile(lambda line: line.startswith("# "), map(str.strip, reversed(lines)))
    return " ".join(line.removeprefix("# ") for line in reversed(list(comment)))


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n...\n").strip()
