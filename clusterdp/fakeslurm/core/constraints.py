"""The option --constraint: finds the nodes that have the features it names."""

from __future__ import annotations

import re
from collections.abc import Iterable

Alternative = list[list[str]]  # groups of features: a node needs all features of at least one group


def words(text: str) -> list[str]:
    return [word for word in re.split(r"\*\d+|[&|\[\]()]", text) if word]


def alternatives(text: str | None) -> list[Alternative]:
    """Parses a constraint. `a&b|c` is one alternative with two groups. `[a|b]` is two alternatives, because all nodes
    must have the same feature."""
    if not text:
        return [[[]]]
    inside = re.fullmatch(r"\[(.*)\]", text)
    if inside:
        return [[group.split("&")] for group in inside[1].split("|")]
    return [[group.split("&") for group in re.sub(r"[()]", "", text).split("|")]]


def has(features: Iterable[str], wanted: Alternative) -> bool:
    present = set(features)
    return any(present.issuperset(group) for group in wanted)


def known(text: str, of_nodes: Iterable[Iterable[str]]) -> bool:
    """Whether each word of the constraint is a feature of some node."""
    everything = {feature for features in of_nodes for feature in features}
    return everything.issuperset(words(text))


def counted(text: str) -> bool:
    """Whether the constraint asks for numbers of nodes, like `a*2&b*1`."""
    return "*" in text
