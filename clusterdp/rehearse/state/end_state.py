"""EndState: the state that a run has left, as leaves by dotted keys.

For a tensor, the state has only a digest, without the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clusterdp.rehearse.state.stored import Stored

Part = Literal["model", "optimizer", "scheduler", "scaler", "rng", "sampler", "step", "metrics", "other"]
# Parts from which, by their names, a training does not resume: scores, options and other values.
RESULTS: frozenset[Part] = frozenset(("metrics", "other"))
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Leaf:
    """A value of an end state."""

    kind: Literal["tensor", "numbers", "number", "text"]  # numbers: a long list of numbers; text: a string or None
    dtype: str
    shape: tuple[int, ...]
    digest: int
    part: Part = "other"
    rank: int | None = None
    value: Scalar = None  # the value of a number or a text
    # Reads the bytes of a tensor or of numbers from their file, which must not change before the comparison ends.
    stored: Stored | None = field(default=None, compare=False)


@dataclass(frozen=True)
class EndState:
    """The end state of a run."""

    values: Mapping[str, Leaf]
    source: str  # the place where the state was found, in words
    unmatched: tuple[str, ...] = ()  # the patterns that found no file
