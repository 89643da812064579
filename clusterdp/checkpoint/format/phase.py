"""Phase: a part of a run that has its own state, such as a pretraining before a finetuning. Torch-free.

All phases of a run save into one folder, and each continues from its own newest commit. A phase begins at the end of
the previous phase: commits of a phase are used only if they are newer than the last commit of the previous phase, or
than the commit from which the previous phase was restored. A run that goes back to a step of an earlier phase commits
that step again, which retires all later commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterdp.checkpoint.format.manifest import CheckpointInfo


@dataclass(frozen=True)
class Phase:
    name: str = ""  # the name; empty in a run without phases
    after: int = -1  # `order` of the newest commit when the phase began
    first: int = 0  # number of steps of the run before the phase

    def has(self, info: CheckpointInfo) -> bool:
        return info.phase == self.name and info.order > self.after


def called(name: str) -> str:
    return f"phase {name!r}" if name else "the phase without a name"
