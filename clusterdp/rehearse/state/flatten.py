"""Makes a flat dict of leaves, by dotted keys, from a tree of dicts, lists, values and tensors."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.rehearse.state.end_state import Leaf
from clusterdp.rehearse.state.optimizers import mark_optimizers
from clusterdp.rehearse.state.parts import part_of, rank_of
from clusterdp.rehearse.state.stored import Stored, of_bytes

MOST = 1_000_000  # maximum number of leaves, because a small pickle can describe an endless tree
_DEEPEST = 100
Plain = Callable[[Any], Any]  # returns the value for which an object of a file stands
_LONG = 32  # a longer list of numbers is one leaf, such as the 625 numbers of Python's generator
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RuntimeError)
# Words in keys of volatile values. `time_embed.weight` belongs to the model, whose values are never volatile.
_KEY = re.compile(
    r"(?:^|[._/ -])(?:time|times|timing|timings|timestamp|date|datetime|runtime|elapsed|duration|seconds|secs|sec|dt|"
    r"eta|wall|wallclock|throughput|fps|mfu|per_second|per_sec|hostname|host|hosts|node|nodes|nodelist|pid|ppid|uuid|"
    r"\w+_at|user|username|cwd|path|paths|dir|dirs|file|filename|folder|job_id|jobid|slurm_job_id|run_id|run_name|port|"
    r"created|started|finished|ended|memory|mem|resume_from\w*)(?:$|[._/ -]|(?:_(?:s|ms|sec|seconds|at|mb|gb)\b))",
    re.IGNORECASE,
)
_NUMBER = r"\d+(?:\.\d+)?"
_TEXT = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T_ -]\d\d[:.-]?\d\d[:.-]?\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"  # 2026-11-23 10:39:46
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [\w ]{5,7} \d\d:\d\d:\d\d(?: \w{3,4})?(?: \d{4})?"  # as date(1) prints
    r"|\d{8}[-_T]\d{4,6}"
    r"|\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?\b"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|0x[0-9a-f]{6,}"
    r"|(?<![\w.:/])~?/[\w.+@%=~-]+(?:/[\w.+@%=~-]*)*"  # an absolute path
    rf"|{_NUMBER} ?(?:ns|us|µs|ms|s|secs?|seconds?|min|minutes?|s/it|ms/it|(?:it|samples|tokens|steps|img|images)/s)\b"
    r"|\b(?:host|hostname|node|pid|job|job_?id)[=: ]+[\w.-]+",
    re.IGNORECASE,
)
# If a key contains the name of one of these parts, a word like `time` in the key does not mean a clock.
_NEVER = ("model", "optimizer", "scheduler", "scaler", "rng", "sampler", "step")


def leaves_of(tree: Any, file: str = "", prefix: str = "", plain: Plain | None = None) -> dict[str, Leaf]:
    """Returns the leaves of a tree, without volatile values. `file`: the tree's file. Its name can show which
    part of the training it holds.
    `prefix`: the text with which each key begins.

    Raises one of MALFORMED if a pickle's objects do not have the form of their classes, and CheckpointError if its
    tensors cannot be read."""
    found: dict[str, Leaf] = {}
    for count, (path, value) in enumerate(_walk(tree, plain or (lambda value: value), ())):
        if count >= MOST:
            raise ValueError(f"it has more than {MOST:,} values")
        key = ".".join(path)
        leaf = _leaf(value, file, key, rank_of(f"{file}:{prefix}{key}"))
        if is_volatile(key, leaf):
            continue
        name = prefix + key if key else prefix.rstrip(":.") or "value"
        while name in found:  # {0: ..., "0": ...} gives the same name twice
            name += "~2"
        found[name] = leaf
    return mark_optimizers(found)


def _walk(value: Any, plain: Plain, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if len(path) > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST}, or in itself")
    value = plain(value)
    if isinstance(value, Mapping):
        # Lightning uses the paths of its best models as keys, and paths are volatile.
        children = [(without_volatile(str(plain(key))), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and not _are_long(value):
        children = [(str(i), item) for i, item in enumerate(value)]
    elif isinstance(value, (set, frozenset)):
        value, children = "{" + ", ".join(sorted(str(plain(item)) for item in value)) + "}", []
    else:
        children = []
    if not children:
        yield path, value
    for name, item in children:
        yield from _walk(item, plain, (*path, name))


def _are_long(items: list[Any] | tuple[Any, ...]) -> bool:
    return len(items) > _LONG and (all(type(i) is int for i in items) or all(type(i) is float for i in items))


def _leaf(value: Any, file: str, key: str, rank: int | None) -> Leaf:
    if isinstance(value, Stored):
        return _of_stored("tensor", value, part_of(file, key, math.prod(value.shape)), rank)
    part = part_of(file, key)
    if isinstance(value, (bytes, bytearray)):
        return _of_stored("numbers", of_bytes("uint8", (len(value),), value), part, rank)
    if isinstance(value, (list, tuple)) and value:
        # numpy has no type for integers beyond 64 bits: they are compared as text.
        numbers = np.array(value)
        if numbers.dtype.kind in "iuf":
            stored = of_bytes(numbers.dtype.name, numbers.shape, numbers.tobytes())
            return _of_stored("numbers", stored, part, rank)
        value = str(value)
    if isinstance(value, float):
        return Leaf("number", "float", (), checksum(struct.pack("<d", value)), part, rank, value)
    if isinstance(value, (bool, int)):
        # hex(), because Python refuses to print a very large integer in decimal digits.
        return Leaf("number", type(value).__name__, (), checksum(hex(value).encode()), part, rank, value)
    text = value if value is None or isinstance(value, str) else str(value)  # an empty container, or a complex number
    same = checksum(without_volatile(text).encode("utf-8", "replace") if text is not None else b"")
    return Leaf("text", "none" if text is None else "str", (), same, part, rank, text)


def _of_stored(kind: Any, stored: Stored, part: Any, rank: int | None) -> Leaf:
    digest = checksum(stored.read().data) if stored.digest is None else stored.digest
    return Leaf(kind, stored.dtype, stored.shape, digest, part, rank, None, stored)


def is_volatile(key: str, leaf: Leaf) -> bool:
    """Whether the value with this key is volatile: it does not depend on the training."""
    return leaf.part not in _NEVER and _KEY.search(key) is not None


def without_volatile(text: str) -> str:
    """Returns the text, for a comparison, with <...> in place of each volatile part, such as a date or a path."""
    return _TEXT.sub("<...>", text)
