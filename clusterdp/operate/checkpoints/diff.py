"""`clusterdp checkpoint diff`: shows the tensors and values that differ in two checkpoints, and by how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from clusterdp.checkpoint.format.layout import TensorEntry
from clusterdp.checkpoint.format.manifest import CheckpointInfo, Manifest
from clusterdp.checkpoint.format.payload import Payload, own_payload, shared_payload, whole
from clusterdp.checkpoint.format.skeleton import TensorReference, leaves
from clusterdp.checkpoint.format.verified_reads import read_manifest
from clusterdp.errors import CheckpointError
from clusterdp.operate.checkpoints.place import CheckpointPlace
from clusterdp.operate.output.formatting import Colour, number
from clusterdp.storage import Storage

if TYPE_CHECKING:
    from clusterdp.checkpoint.load.difference import TensorDifference

MANY = 20  # differing values that are printed; a loader's state may have thousands


# A function that takes the bytes of two tensors and their dtype, and returns their difference. Its first call loads
# torch.
Measure = Callable[[bytearray, bytearray, str], "TensorDifference"]


@dataclass(frozen=True)
class Side:
    storage: Storage
    info: CheckpointInfo
    manifest: Manifest


def show_diff(
    left: CheckpointPlace, right: CheckpointPlace, out: TextIO, measure: Measure, only: str | None = None
) -> int:
    """Prints the differences, and returns the exit code: 0 if both checkpoints are equal to the last bit, else 1. With
    `only`, one object's state is compared."""
    colour = Colour(out)
    a, b = _side(left, only), _side(right, only)
    for sign, place, side in (("-", left, a), ("+", right, b)):
        out.write(f"{sign} {colour('bold', place.name)}  step {side.info.step}  {side.info.token}\n")
    if (a.storage.url, a.info.data) == (b.storage.url, b.info.data):
        out.write("identical: both are made of the same files\n")
        return 0
    differing, equal = 0, 0
    with shared_payload(a.storage, a.manifest) as left_payload, shared_payload(b.storage, b.manifest) as right_payload:
        for line in _tensors(left_payload, right_payload, measure, only):
            equal += line is None
            if line is not None:
                if not differing:
                    out.write("\n" + colour("dim", HEAD) + "\n")
                differing += 1
                out.write(line + "\n")
    values = [*_values(a, b, only), *_per_rank(a, b, only)]
    if values:
        out.write("\n" + "\n".join(values[:MANY]) + "\n")
        if len(values) > MANY:
            out.write(f"and {len(values) - MANY} more values\n")
    if not differing and not values:
        out.write(f"identical: {equal} tensors and all that goes with them, to the last bit\n")
        return 0
    out.write(f"\n{differing} of {differing + equal} tensors differ\n")
    return 1


def _side(place: CheckpointPlace, only: str | None) -> Side:
    info = place.newest()
    manifest = read_manifest(place.storage, info)
    if only is not None and only not in manifest.state:
        known = ", ".join(manifest.state)
        raise CheckpointError(f"--only {only}: step {info.step} has no such object. It has: {known}.")
    return Side(place.storage, info, manifest)


HEAD = f"{'max abs':>10}  {'mean abs':>10}  {'elements':>23}  tensor"


def _tensors(a: Payload, b: Payload, measure: Measure, only: str | None) -> Iterator[str | None]:
    """Yields a line for each tensor that differs, and None for each equal tensor. Only one tensor of each checkpoint is
    in memory at a time."""
    left, right = _chosen(a, only), _chosen(b, only)
    for name, entry in left.items():
        other = right.get(name)
        if other is None:
            yield f"- {_shape(entry)}  {name}"
        elif (entry.dtype, entry.shape) != (other.dtype, other.shape):
            yield f"- {_shape(entry)}  + {_shape(other)}  {name}"
        else:
            yield _difference(whole(a, entry), whole(b, other), entry, measure)
    for name, entry in right.items():
        if name not in left:
            yield f"+ {_shape(entry)}  {name}"


def _difference(a: bytearray, b: bytearray, entry: TensorEntry, measure: Measure) -> str | None:
    if a == b:
        return None
    found = measure(a, b, entry.dtype)
    count = f"{found.count} of {math.prod(entry.shape)}"
    return f"{found.max:>10.4g}  {found.mean:>10.4g}  {count:>23}  {entry.name}"


def _chosen(payload: Payload, only: str | None) -> dict[str, TensorEntry]:
    return {e.name: e for e in payload.entries if only is None or e.name == only or e.name.startswith(f"{only}/")}


def _shape(entry: TensorEntry) -> str:
    return f"{entry.dtype}{list(entry.shape)}"


def _values(a: Side, b: Side, only: str | None) -> Iterator[str]:
    """Yields the values that differ and are not tensors: parameter groups, positions, and the `meta` argument of
    save()."""
    if only is not None:
        yield from _differing(a.manifest.state[only], b.manifest.state[only], only)
        return
    yield from _differing(a.manifest.state, b.manifest.state)
    yield from _differing(a.manifest.meta, b.manifest.meta, "meta")


def _differing(a: Any, b: Any, *path: Any) -> Iterator[str]:
    """Yields the values that differ between two checkpoints. A tensor that only one checkpoint has is left to
    _tensors()."""
    left, right = dict(leaves(a, *path)), dict(leaves(b, *path))
    told = a == b  # exact: values that JSON cannot hold are stored as text
    for keys in dict.fromkeys([*left, *right]):
        old, new = left.get(keys, Absent), right.get(keys, Absent)
        if (type(old), _spelled(old)) != (type(new), _spelled(new)):
            told = True
            if not (Absent in (old, new) and TensorReference in (type(old), type(new))):
                yield f"{_key(keys)}: {_said(old)} -> {_said(new)}"
    if not told:
        yield f"{_key(path) or 'state'}: the same values in other containers"


def _spelled(value: Any) -> str:
    """Returns the value as text for a comparison: NaN does not equal itself, and an int may be too long for repr()."""
    return hex(value) if isinstance(value, int) else repr(value)


def _key(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


class Absent:
    """Represents a value that one of two checkpoints does not have."""


def _said(value: Any) -> str:
    if value is Absent:
        return "absent"
    return f"the tensor {value.name}" if isinstance(value, TensorReference) else f"{number(value):.60}"


def _per_rank(a: Side, b: Side, only: str | None) -> Iterator[str]:
    """Yields the differences of each rank's own state. Random states get one line in all, because their values mean
    nothing to a reader."""
    if a.info.world_size != b.info.world_size:
        if only is None:
            yield f"ranks: {a.info.world_size} -> {b.info.world_size}; what each had for itself is not compared"
        return
    draws: list[int] = []
    for rank in range(a.info.world_size):
        with (
            own_payload(a.storage, a.manifest, rank) as (left, x),
            own_payload(b.storage, b.manifest, rank) as (right, y),
        ):
            if only is None and (left["rng"] != right["rng"] or any(_differing_names(x, y, "rng"))):
                draws.append(rank)
            yield from _differing(_part(left, only), _part(right, only), f"rank {rank}")
            for name in _differing_names(x, y, "objects" if only is None else f"objects/{only}"):
                yield f"rank {rank}/{name.removeprefix('objects/')}: other values"
    if draws:
        ranks = "all ranks" if len(draws) == a.info.world_size else f"ranks {', '.join(map(str, draws))}"
        yield f"random numbers: {ranks} would draw others"


def _part(state: Mapping[str, Any], only: str | None) -> Any:
    objects = state["objects"]
    return objects if only is None else {only: objects[only]} if only in objects else {}


def _differing_names(a: Payload, b: Payload, under: str) -> Iterator[str]:
    left, right = _chosen(a, under), _chosen(b, under)
    for name in dict.fromkeys([*left, *right]):
        if name not in left or name not in right or whole(a, left[name]) != whole(b, right[name]):
            yield name
