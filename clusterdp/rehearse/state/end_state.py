"""EndState: what a run has left, as leaves by their dotted keys. The digest of a tensor is kept, and not its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from clusterdp.rehearse.state.stored import Stored

Part = Literal["model", "optimizer", "scheduler", "scaler", "rng", "sampler", "step", "metrics", "other"]
# No state that a training goes on from, as far as names show: scores and options.
RESULTS: frozenset[Part] = frozenset(("metrics", "other"))
Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Leaf:
    """kind: `tensor`; `numbers`, a long list of them; `number`; `text`, which may be None too.

    `value` is that of a number or a text. `stored` reads the bytes of a tensor or of numbers from where they were
    found: that file must stay as it is until the states have been compared.
    """

    kind: Literal["tensor", "numbers", "number", "text"]
    dtype: str
    shape: tuple[int, ...]
    digest: int
    part: Part = "other"
    rank: int | None = None
    value: Scalar = None
    stored: Stored | None = field(default=None, compare=False)


@dataclass(frozen=True)
class EndState:
    """The end state of a run. `source` says in words where it was found. `unmatched`: the patterns that found
    nothing."""

    values: Mapping[str, Leaf]
    source: str
    unmatched: tuple[str, ...] = ()
