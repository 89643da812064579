"""`clusterdp show --explain`: prints the meaning of each key, which is the comment of the key's field in tree.py."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clusterdp.config import tree as config_module
from clusterdp.config.tree import Config, SiteConfig
from clusterdp.errors import ConfigError
from clusterdp.wording import did_you_mean, unit_of


@dataclass(frozen=True)
class KeyExplanation:
    """What `show --explain` prints about one key."""

    key: str
    kind: str  # the key's type in tree.py
    default: Any
    meaning: str
    example: str  # YAML
    unit: str

    def __str__(self) -> str:
        default = f"; default: {self.shown_default}" if self.shown_default else ""
        return f"{self.key}\n    {self.text}{default}\n    e.g. {self.shown_example}"

    @property
    def text(self) -> str:
        """The meaning, after the unit if the meaning does not have it."""
        return f"{self.unit}: {self.meaning}" if self.unit and self.unit not in self.meaning else self.meaning

    @property
    def shown_default(self) -> str:
        """The default as YAML, or `none`; empty if the meaning has it."""
        if "default:" in self.meaning:
            return ""
        return "none" if self.default is None else _yaml(self.default)

    @property
    def shown_example(self) -> str:
        return f"{self.key.rpartition('.')[2]}: {self.example}"


def explain(key: str = "") -> str:
    """Returns the explanation of a key, of all keys of a section, or of all keys. Raises ConfigError, with a similar
    key, if the key does not exist."""
    everything = list(explanations(SiteConfig()))
    found = [one for one in everything if not key or one.key == key or one.key.startswith(f"{key}.")]
    if not found:
        meant = key_named(key.rpartition(".")[2]) or key
        remedy = did_you_mean(meant, [one.key for one in everything], "`clusterdp show --explain` lists all.")
        raise ConfigError(f"{key}: there is no such key. {remedy}")
    return "\n".join(map(str, found))


def key_named(name: str) -> str:
    """Returns the key whose last word is `word`, such as `resources.nodes` for `nodes`; empty if no key has this
    word."""
    return next((one.key for one in explanations() if one.key.rpartition(".")[2] == name), "")


def explanations(tree: Any = None, above: str = "") -> Iterator[KeyExplanation]:
    """Yields the explanations of all keys in `tree`, a section with its defaults. By default, `tree` is the whole
    config."""
    tree = Config() if tree is None else tree
    comments = comments_of(type(tree))
    for field in dataclasses.fields(tree):
        key, default = f"{above}{field.name}", getattr(tree, field.name)
        if dataclasses.is_dataclass(default):
            yield from explanations(default, f"{key}.")
            continue
        meaning, _, example = comments.get(field.name, "").partition("; e.g. ")
        example = str(not default).lower() if isinstance(default, bool) else example.strip().strip("`")
        yield KeyExplanation(key, str(field.type), default, meaning, example, unit_of(field.name))


def comments_of(tree: type) -> dict[str, str]:
    """Returns the comment of each field, inherited ones too: the text at the end of the field's line, or on the lines
    above."""
    return {name: text for kind in reversed(tree.__mro__) for name, text in _comments()[kind.__name__].items()}


@functools.cache
def _comments() -> dict[str, dict[str, str]]:
    """Returns the comments of the fields, by section. Reads the source once: that takes a millisecond."""
    lines = inspect.getsource(config_module).splitlines()
    found = defaultdict[str, dict[str, str]](dict)
    sections = (node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef))
    for section in sections:
        for field in section.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                behind = re.search(r"  # (.*)$", lines[field.lineno - 1])
                comment = behind[1] if behind else _above(lines[: field.lineno - 1])
                found[section.name][field.target.id] = comment
    return found


def _above(lines: list[str]) -> str:
    """Returns the comment in the last of these lines, which are above a field."""
    comment = itertools.takewhile(lambda line: line.startswith("# "), map(str.strip, reversed(lines)))
    return " ".join(line.removeprefix("# ") for line in reversed(list(comment)))


def _yaml(value: Any) -> str:
    import yaml

    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n...\n").strip()
