"""compare(): the differences of a run's end state from the expected end state. spread_of(): how far the end states of
undisturbed runs differ.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.checkpoint.format.layout import ITEM_SIZES
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.state.end_state import EndState, Leaf, Part
from clusterdp.rehearse.state.optimizers import optimizers_of, prefix_of
from clusterdp.rehearse.state.stored import Bytes
from clusterdp.wording import counted, some_of

# The allowed distance of another run, in spreads, by the number of undisturbed runs. The spread is the largest distance
# of any two undisturbed runs. With two runs, the spread is a single distance, and may be small. With five runs, the
# spread is the largest of ten, and another run exceeds it in at most 1 case of 5. The factors are chosen, not derived.
MARGINS = {2: 4.0, 3: 3.0, 4: 2.5}
MARGIN_OF_MANY = 2.0
FEW = 2.0  # The norm of n normal numbers varies with 1/sqrt(n): one number of five runs was once 2.5 spreads away.
# The spread of a key that differs by an amount which cannot be measured. Such keys are not compared.
UNSTEADY = math.inf
Values = NDArray[Any]  # float64 or complex128
_BYTES = 1 << 18  # number of bytes compared at a time, so that their doubles stay in the processor's cache
_LARGE = 1e140  # larger numbers, infinity and NaN are not measured, because a sum of squares must stay finite
SHOWN = 2  # maximum number of keys that are shown for each part
_NAMES = {
    "step": "the count of steps",
    "model": "the model",
    "optimizer": "the optimizer's state",
    "scheduler": "the learning rate's schedule",
    "scaler": "the GradScaler's state",
    "rng": "the random numbers' state",
    "sampler": "the position in the data",
    "metrics": "the metrics",
    "other": "other values",
}
_PLURAL = ("the metrics", "other values")
_PREFIX = "module."
NO_VALUES: Mapping[str, Leaf] = {}


@dataclass(frozen=True)
class Difference:
    """A key whose values differ."""

    key: str
    what: str  # the difference in words
    rank: int | None
    part: Part
    size: float  # the L2 norm of the difference, divided by the larger value's norm; infinity if it cannot be measured
    expected: float | None = None  # the expected value; set only for single numbers
    got: float | None = None


def compare(
    expected: EndState, got: EndState, spread: Mapping[str, float] | None = None, runs: int = 2
) -> list[Difference]:
    """Returns the differences beyond the spread of `runs` runs, or all differences in bits if `spread` is None. Two
    NaNs count as equal, 0.0 and -0.0 as different.

    Raises CheckpointError if a file of either state has changed since it was read.
    """
    differences = [*_differences(expected, got)]
    if not spread:
        return differences
    usual, unsteady = _usual(expected, spread), _unsteady(expected, spread)
    margin = MARGINS.get(runs, MARGIN_OF_MANY)

    def allowed(each: Difference) -> float:
        leaf = expected.values.get(each.key)
        few = 1 + FEW / math.sqrt(max(1, math.prod(leaf.shape))) if leaf is not None else 1.0
        return margin * few * _allowed(each, expected, spread, usual, unsteady)

    return [each for each in differences if not each.size <= allowed(each)]


def spread_of(*states: EndState) -> Mapping[str, float]:
    """Returns, for each key that differs, the largest relative difference of any two states.

    Returns UNSTEADY for a key whose values are not floats, or which a state does not have.
    """
    found: dict[str, float] = {}
    for a, b in itertools.combinations(states, 2):
        for each in _differences(a, b):
            is_measured = _is_float(a.values.get(each.key)) and math.isfinite(each.size)
            found[each.key] = max(found.get(each.key, 0.0), each.size if is_measured else UNSTEADY)
    return found


def _usual(expected: EndState, spread: Mapping[str, float]) -> dict[Part, float]:
    """Returns the median spread of each part's floats, because a small tensor may be equal in two runs by chance."""
    sizes: dict[Part, list[float]] = {}
    for key, size in spread.items():
        leaf = expected.values.get(key)
        if leaf is not None and size < UNSTEADY:
            sizes.setdefault(leaf.part, []).append(size)
    return {part: median(each) for part, each in sizes.items() if part in ("model", "optimizer", "metrics")}


def _unsteady(expected: EndState, spread: Mapping[str, float]) -> set[Part]:
    """Returns the parts with random values, in which a flag or a small number may be equal in two runs by chance."""
    parts: set[Part] = {leaf.part for key in spread if (leaf := expected.values.get(key))} & {"rng", "sampler"}
    return parts | {"scaler"} if "rng" in parts else parts  # random numbers decide which steps overflow


def _allowed(
    each: Difference,
    expected: EndState,
    spread: Mapping[str, float],
    usual: Mapping[Part, float],
    unsteady: Collection[Part],
) -> float:
    if each.part in unsteady:
        return UNSTEADY
    if not _is_float(expected.values.get(each.key)):
        return spread.get(each.key, 0.0)
    return max(spread.get(each.key, 0.0), usual.get(each.part, 0.0))


def _is_float(leaf: Leaf | None) -> bool:
    return leaf is not None and is_float(leaf.dtype)


def _differences(expected: EndState, got: EndState) -> Iterator[Difference]:
    for key, leaf in expected.values.items():
        other = got.values.get(key)
        if other is None:
            yield Difference(key, "is missing", leaf.rank, leaf.part, math.inf)
        elif (leaf.digest, leaf.dtype, leaf.shape) != (other.digest, other.dtype, other.shape):
            yield from _difference(key, leaf, other)
    for key, leaf in got.values.items():
        if key not in expected.values:
            yield Difference(key, "is new", leaf.rank, leaf.part, math.inf)


def _difference(key: str, a: Leaf, b: Leaf) -> Iterator[Difference]:
    """Yields the difference of two leaves, or nothing if only the bits of a NaN differ."""
    if a.stored is None or b.stored is None or (a.dtype, a.shape) != (b.dtype, b.shape):
        found = _of_values(key, a, b)
    else:
        found = _of_bytes(key, a, b)
    if found is not None:
        yield found


def _of_bytes(key: str, a: Leaf, b: Leaf) -> Difference | None:
    x, y = _bytes(key, a), _bytes(key, b)
    found = measure(x, y, a.dtype)
    if not found.count:
        return None
    if found.total == 1 and found.most is not None:
        u, v = (float(number.real) for number in (values(x, a.dtype)[0], values(y, a.dtype)[0]))  # type: ignore[index]
        return Difference(key, f"{u:.9g} against {v:.9g}", a.rank, a.part, found.relative, u, v)
    what = f"differs in {found.count} of {found.total} elements"
    if found.most is not None and a.part != "rng":
        what += f", by at most {found.most:.3g}"
    return Difference(key, what, a.rank, a.part, found.relative)


def _of_values(key: str, a: Leaf, b: Leaf) -> Difference | None:
    u, v = _number(a), _number(b)
    if u is None or v is None:
        return Difference(key, f"{_said(a)} against {_said(b)}", a.rank, a.part, math.inf, u, v)
    if math.isnan(u) and math.isnan(v):
        return None
    largest = max(abs(u), abs(v))
    size = abs(u - v) / largest if 0 < largest < math.inf else 0.0 if u == v else math.inf
    return Difference(key, f"{_said(a)} against {_said(b)}", a.rank, a.part, size, u, v)


def _number(leaf: Leaf) -> float | None:
    try:
        return float(leaf.value) if isinstance(leaf.value, (int, float)) else None
    except OverflowError:
        return math.inf


def _said(leaf: Leaf) -> str:
    if leaf.stored is not None:
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"{leaf.value!r:.60}" if _number(leaf) != math.inf else "a huge number"


def _bytes(key: str, leaf: Leaf) -> Bytes:
    assert leaf.stored is not None
    data = leaf.stored.read()
    if checksum(data.data) != leaf.digest:
        raise CheckpointError(f"{key}: its file was changed after it was read. Keep the files of each run apart.")
    return data


@dataclass(frozen=True)
class Distance:
    """The distance of two tensors."""

    count: int  # number of elements with different bits; two NaNs count as equal
    total: int
    most: float | None  # the largest distance of two elements; None if numpy does not compute with the dtype
    relative: float  # L2 norm of the distances, divided by the larger tensor's norm; count / total if `most` is None


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


def measure(a: Bytes, b: Bytes, dtype: str) -> Distance:
    """Computes the distance of two tensors from their bytes."""
    item = ITEM_SIZES.get(dtype, 1)
    total = len(a) // item
    count, most, squares, left, right = 0, 0.0, 0.0, 0.0, 0.0
    known = values(a[:0], dtype) is not None
    for start in range(0, len(a), _BYTES):
        x, y = a[start : start + _BYTES], b[start : start + _BYTES]
        other = _differing(x, y, item)
        u, v = values(x, dtype), values(y, dtype)
        if u is None or v is None:
            count += int(np.count_nonzero(other))
            continue
        if not math.isfinite(_square(u) + _square(v)):
            other &= ~(np.isnan(u) & np.isnan(v))
            large = ~((np.abs(u) < _LARGE) & (np.abs(v) < _LARGE))
            if (other & large).any():
                most, squares = math.inf, math.inf
            u, v = np.where(large, 0, u), np.where(large, 0, v)
        count += int(np.count_nonzero(other))
        distance = u - v
        most = max(most, float(np.abs(distance).max()))
        squares, left, right = squares + _square(distance), left + _square(u), right + _square(v)
    if not known:
        return Distance(count, total, None, count / max(1, total))
    norm = max(left, right)
    return Distance(count, total, most, math.sqrt(squares / norm) if norm else math.inf if squares else 0.0)


def number_of(leaf: Leaf) -> float | None:
    """Returns the value of a plain number or of a tensor of one element, or None for any other leaf."""
    if leaf.stored is None:
        return float(leaf.value) if isinstance(leaf.value, (int, float)) else None
    found = values(leaf.stored.read(), leaf.dtype) if math.prod(leaf.shape) == 1 else None
    return None if found is None else float(found[0].real)


def values(data: Bytes, dtype: str) -> Values | None:
    """Returns the elements of a tensor as float64 or complex128, or None if numpy lacks the dtype (float8)."""
    if dtype == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "complex32" or dtype not in ITEM_SIZES or dtype.startswith("float8"):
        return None
    return data.view(np.dtype(dtype)).astype(np.complex128 if dtype.startswith("complex") else np.float64)


def _differing(x: Bytes, y: Bytes, item: int) -> NDArray[np.bool_]:
    kind = np.dtype(f"u{min(item, 8)}")
    found: NDArray[np.bool_] = x.view(kind) != y.view(kind)
    return np.logical_or(found[::2], found[1::2]) if item == 16 else found


def _square(values: Values) -> float:
    flat = values.view(np.float64)
    return float(np.einsum("i,i->", flat, flat))  # not dot(), because its threads would take cores from the job


def describe(differences: Sequence[Difference], values: Mapping[str, Leaf] = NO_VALUES) -> str:
    """Returns words for each part that differs, or "" if no part differs. Example: `the model differs in 2 values (w
    differs in 8 of 8 elements, by at most 0.1; b 1 against 2)`.

    `values`: the whole state, by which several optimizers are distinguished.
    """
    if _is_prefix(differences):
        return f"the names of the values differ by the prefix `{_PREFIX}` alone, e.g. {differences[0].key}"
    said = []
    for name, of in _groups(differences, values).items():
        of.sort(key=lambda each: len(each.key))
        named = "; ".join(f"{each.key} {each.what}" for each in of[:SHOWN])
        differ = "differ" if name in _PLURAL else "differs"
        said.append(f"{name} {differ} in {counted(len(of), 'value')} ({named}{'; ...' if len(of) > SHOWN else ''})")
    if len(said) == 1 and len({each.part for each in differences}) == 1 and differences[0].part == "metrics":
        # A history of 80 entries has 80 keys, so the name of the history is shown.
        names = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", each.key) for each in differences)
        return f"nothing but metrics differs: {some_of(list(names), 3)}"
    return ", ".join(said)


def _groups(differences: Sequence[Difference], values: Mapping[str, Leaf]) -> dict[str, list[Difference]]:
    """Returns the differences by the name of their part, in the order of the parts.

    Each of several optimizers has a name of its own.
    """
    optimizers = optimizers_of(values)
    found: dict[str, list[Difference]] = {}
    for part, name in _NAMES.items():
        for each in differences:
            if each.part == part:
                prefix = prefix_of(each.key, optimizers) if part == "optimizer" and len(optimizers) > 1 else None
                found.setdefault(name if prefix is None else optimizers[prefix].words, []).append(each)
    return found


def _is_prefix(differences: Sequence[Difference]) -> bool:
    """Whether all missing and new values are the same values under names with and without the prefix `module.`."""
    gone = [each.key for each in differences if each.what == "is missing"]
    new = [each.key for each in differences if each.what == "is new"]
    if not gone or len(gone) + len(new) != len(differences):
        return False
    plain = [sorted(key.replace(_PREFIX, "") for key in keys) for keys in (gone, new)]
    return gone != new and plain[0] == plain[1]
