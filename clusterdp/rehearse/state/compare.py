"""compare(): where a run has ended in another state than the one expected, and spread_of(): where two runs that nothing
has disturbed do so themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from clusterdp.checkpoint.format.checksum import checksum
from clusterdp.errors import CheckpointError
from clusterdp.rehearse.state.end_state import EndState, Leaf, Part
from clusterdp.rehearse.state.measure import is_float, measure, values
from clusterdp.rehearse.state.stored import Bytes

# How many times the spread of n undisturbed runs another one may be away from the first. The spread is the largest
# distance of any two. Of two runs it is one draw, and may be a small one. Of five it is the largest of ten, and another
# undisturbed run is beyond it in at most one case of five, by symmetry; the factor beyond that is chosen, not derived.
MARGINS = {2: 4.0, 3: 3.0, 4: 2.5}
MARGIN_OF_MANY = 2.0
# In the spread: it differs, and nothing that can be measured. It is not compared.
UNSTEADY = math.inf


@dataclass(frozen=True)
class Difference:
    """`size` is relative: an L2 norm in the larger one's, infinity where there is no measure. `expected` and `got` are
    those of a single number."""

    key: str
    what: str
    rank: int | None
    part: Part
    size: float
    expected: float | None = None
    got: float | None = None


def compare(
    expected: EndState, got: EndState, spread: Mapping[str, float] | None = None, runs: int = 2
) -> list[Difference]:
    """Those beyond the spread of so many runs, or, with None, those of any bit. Two NaNs are equal; 0.0 and -0.0 not.

    Raises CheckpointError where a file of either has been changed since it was read.
    """
    differences = [*_differences(expected, got)]
    if not spread:
        return differences
    usual, unsteady = _usual(expected, spread), _unsteady(expected, spread)
    margin = MARGINS.get(runs, MARGIN_OF_MANY)
    return [each for each in differences if not each.size <= margin * _allowed(each, expected, spread, usual, unsteady)]


def spread_of(*states: EndState) -> Mapping[str, float]:
    """The largest relative size of the difference of any two for each key that differs. UNSTEADY: its values are not
    floats, or some states lack it."""
    found: dict[str, float] = {}
    for a, b in itertools.combinations(states, 2):
        for each in _differences(a, b):
            is_measured = _is_float(a.values.get(each.key)) and math.isfinite(each.size)
            found[each.key] = max(found.get(each.key, 0.0), each.size if is_measured else UNSTEADY)
    return found


def _usual(expected: EndState, spread: Mapping[str, float]) -> dict[Part, float]:
    """The median spread of each part's floats. A small tensor may have been equal twice by chance."""
    sizes: dict[Part, list[float]] = {}
    for key, size in spread.items():
        leaf = expected.values.get(key)
        if leaf is not None and size < UNSTEADY:
            sizes.setdefault(leaf.part, []).append(size)
    return {part: median(each) for part, each in sizes.items() if part in ("model", "optimizer", "metrics")}


def _unsteady(expected: EndState, spread: Mapping[str, float]) -> set[Part]:
    """Parts that are drawn by chance: a flag or a small number of one may have been equal twice all the same."""
    parts: set[Part] = {leaf.part for key in spread if (leaf := expected.values.get(key))} & {"rng", "sampler"}
    return parts | {"scaler"} if "rng" in parts else parts  # which steps overflow follows from what is drawn


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
    """Nothing if all that differs is how a NaN is written."""
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
