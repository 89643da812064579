"""Two observations of a workload, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from clusterdp.fakeslurm import PartitionShape, Shape
from clusterdp.fakeslurm.core.release import version_of

from .observed import Observation


def like_the_real_one(release: str) -> Shape:
    """The fake as this release, with the partitions of tests/slurm/conf.py; it may be quicker where a script cannot
    notice.
    """
    partitions = (
        PartitionShape("main", default=True),
        PartitionShape("short", max_minutes=1),
        PartitionShape("low", tier=1, preempt="REQUEUE", grace_s=10),
        PartitionShape("low0", tier=1, preempt="REQUEUE"),
    )
    shape = Shape.simple(4, 8, 2)
    settings = replace(shape.settings, slurm_version=version_of(release))
    return replace(shape, partitions=partitions, settings=settings)


def differences(expected: Observation, seen: Observation) -> list[str]:
    """One line for each place that differs: what the real Slurm had there, and what the fake has."""
    return [f"{place}: real {one!r}, fake {other!r}" for place, one, other in _walk("", expected, seen)]


def _walk(place: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from _walk(f"{place}/{key}", one.get(key), other.get(key))
    elif (
        isinstance(one, list)
        and isinstance(other, list)
        and len(one) == len(other)
        and one
        and isinstance(one[0], dict)
    ):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _walk(f"{place}[{i}]", left, right)
    elif one != other:
        yield place, one, other
