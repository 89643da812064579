"""BatchSize: the number of samples in one step of the optimizer, and the learning rate for it.

batch = BatchSize(32, world_size=8, accumulate=2)        # 512
lr = batch.scaled_lr(0.1, reference=256)                 # 0.2
print(batch)                                             # batch: 32 a rank x 8 ranks x 2 accumulated = 512
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from clusterdp.errors import ConfigError
from clusterdp.train.argument_names import check_counts, checked_class

RULES = ("linear", "sqrt", "none")


@checked_class
@dataclass(frozen=True)
class BatchSize:
    """per_rank: number of samples in one backward pass on one rank."""

    per_rank: int
    world_size: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        for name in ("per_rank", "world_size", "accumulate"):
            if getattr(self, name) < 1:
                raise ConfigError(f"batch size: {name} is {getattr(self, name)}. Use 1 or more.")

    @classmethod
    def of_total(cls, total: int, world_size: int, accumulate: int = 1) -> BatchSize:
        """Returns the batch size that gives a step `total` samples on this number of ranks."""
        per_rank, rest = divmod(total, world_size * accumulate)
        if rest or not per_rank:
            down = per_rank * world_size * accumulate
            up = down + world_size * accumulate
            raise ConfigError(
                f"batch size: {total} samples cannot be divided among {world_size} ranks x {accumulate} accumulated. "
                f"Use {f'{down} or ' if down else ''}{up}."
            )
        return cls(per_rank, world_size, accumulate)

    @property
    def total(self) -> int:
        """The number of samples per step: the effective, or global, batch size."""
        return self.per_rank * self.world_size * self.accumulate

    def scaled_lr(self, lr: float, reference: int = 256, rule: str = "linear") -> float:
        """Returns the learning rate for this batch size, if `lr` is right for `reference` samples. For k times the
        batch, rule `linear` gives k times the rate (for SGD, with warm-up), and `sqrt` gives sqrt(k) times the rate
        (for Adam and similar optimizers)."""
        if rule not in RULES:
            raise ConfigError(f"scaled_lr: {rule!r} is none of {', '.join(RULES)}. Use one of them.")
        check_counts(reference=reference)
        factor = self.total / reference
        return lr * {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[rule]

    def __str__(self) -> str:
        ranks = f" x {self.world_size} rank{'s' if self.world_size > 1 else ''}"
        windows = f" x {self.accumulate} accumulated" if self.accumulate > 1 else ""
        return f"batch: {self.per_rank} a rank{ranks}{windows} = {self.total}"
