"""Reads the skeleton that tree.py makes of a state, without torch: the path to each tensor and to each value."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[Any, ...]
DEEPEST = 128  # limit of levels; tree.py saves only states with fewer levels, because it rebuilds a state by recursion
TENSORS = ("$tensor", "$array", "$scalar")
_TENSOR = {"$tensor"}
VALUES = ("$float", "$int", "$dtype", "$device", "$enum")


@dataclass(frozen=True)
class TensorReference:
    """A tensor's place in the tree. Tied weights have several places in the tree, and one name."""

    name: str


def leaves(skeleton: Any, *path: Any) -> Iterator[tuple[Path, Any]]:
    """Yields (path, value or TensorReference) for each leaf. An empty list or dict is a value. Raises ValueError on an
    unknown tag."""
    waiting = [(path, skeleton)]  # no recursion: each restore walks through all values of a state
    while waiting:
        place, node = waiting.pop()
        children = list(_children(node)) if isinstance(node, (dict, list)) else ()
        if children:
            waiting += [((*place, key), child) for key, child in reversed(children)]
        else:
            yield place, plain(node)


def plain(skeleton: Any) -> Any:
    """Returns the value that a leaf stands for."""
    tag = tag_of(skeleton)
    if tag is None:
        return skeleton
    content = skeleton[tag]
    if tag in TENSORS:
        return TensorReference(content)
    if tag == "$float":
        return float(content)
    return int(content, 16) if tag == "$int" else content


def check(skeleton: Any, tensors: Collection[str]) -> None:
    """Raises ValueError, or another error of manifest.MALFORMED, unless the skeleton is a tree whose tensors are in
    `tensors`."""
    waiting = [(0, skeleton)]
    while waiting:
        depth, node = waiting.pop()
        if depth > DEEPEST:
            raise ValueError(f"its state is nested deeper than {DEEPEST}")
        if isinstance(node, dict) and node.keys() == _TENSOR and node["$tensor"] in tensors:
            continue  # as most are: a model may have 100,000
        if isinstance(node, list) or (isinstance(node, dict) and tag_of(node) is None):
            items = node if isinstance(node, list) else node.values()
            waiting += [(depth + 1, item) for item in items if isinstance(item, (dict, list))]
            continue
        children = list(_children(node))
        for key, child in children:
            hash(key)  # hash() raises TypeError if a key cannot be the key of a dict
            if isinstance(child, (dict, list)):
                waiting.append((depth + 1, child))
        leaf = None if children else plain(node)
        if isinstance(leaf, TensorReference) and leaf.name not in tensors:
            raise ValueError(f"its state refers to the tensor {leaf.name!r:.80}, which is not in its index")


def tag_of(skeleton: Any) -> str | None:
    """Returns the tag of a node, such as `$tuple`; None for plain JSON."""
    if not isinstance(skeleton, dict):
        return None
    tag = next(iter(skeleton), "")
    return tag if tag.startswith("$") else None


def key_from(skeleton: Any) -> Any:
    """Returns a key of a `$dict`: a scalar, or a tuple of scalars."""
    if tag_of(skeleton) == "$tuple":
        return tuple(key_from(item) for item in skeleton["$tuple"])
    return plain(skeleton)


def _children(skeleton: Any) -> Iterator[tuple[Any, Any]]:
    tag = tag_of(skeleton)
    if isinstance(skeleton, list):
        yield from enumerate(skeleton)
    elif not isinstance(skeleton, dict):
        return
    elif tag is None:
        yield from skeleton.items()
    elif tag in ("$tuple", "$size"):
        yield from enumerate(skeleton[tag])
    elif tag == "$deque":
        yield from enumerate(skeleton[tag][1])
    elif tag == "$dict":
        yield from ((key_from(key), item) for key, item in skeleton[tag])
    elif tag == "$module":
        yield from _children(skeleton[tag])
        yield "_metadata", skeleton["$versions"]
    elif tag in ("$ordered", "$counter"):
        yield from _children(skeleton[tag])
    elif tag not in (*TENSORS, *VALUES):
        raise ValueError(f"the state has a {tag}, which this version does not know")
