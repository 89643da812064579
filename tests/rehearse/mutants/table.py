"""Which drill finds each mutant, and the words that name its fault rightly or wrongly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """verdicts: any of them counts as caught. rightly: one of these is in the diagnosis. wrongly: none of these is."""

    drill: str
    verdicts: tuple[str, ...]
    rightly: tuple[str, ...]
    wrongly: tuple[str, ...] = ("random numbers", "scheduler", "scaler")


MUTANTS = {
    "delete_first": Mutant("killed-while-saving", ("lost work",), ("deleted", "lost"), ("optimizer", "random numbers")),
    "gan_second_optimizer": Mutant("preempted", ("failed",), ("opt_d",)),
    "looks_every_30": Mutant("preempted", ("failed", "lost work"), ("SIGTERM",)),
}
