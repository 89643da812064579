"""Phase: a part of a run that has a state of its own, such as a pretraining before a finetuning. Torch-free.

All phases of a run save into one folder. Each goes on from its own newest commit, and one rule tells whether that still
counts: a phase follows from the end of the one before it. The commits of a phase count if they are newer than what the
one before it was restored from, or has saved last. A run that goes back to a step of an earlier phase commits that step
anew, and thereby retires all later commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterdp.checkpoint.format.manifest import CheckpointInfo


@dataclass(frozen=True)
class Phase:
    """`after`: the order of commit where it began. `first`: the steps of the run before it."""

    name: str = ""  # of a run that has no phases
    after: int = -1
    first: int = 0

    def has(self, info: CheckpointInfo) -> bool:
        return info.phase == self.name and info.order > self.after


def called(name: str) -> str:
    return f"phase {name!r}" if name else "the phase without a name"
