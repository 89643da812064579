"""Facts: what an undisturbed run was like."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from clusterdp.rehearse.observe.file_use import ONE_SAVE_S, FileUse, is_best, uses_from_json
from clusterdp.rehearse.observe.save_shape import SaveShape


@dataclass(frozen=True)
class Facts:
    """As Observer has seen it.

    ours: its checkpoints are. steps: of the whole run; None: the program prints none. took_s: from the start of its
    ranks to their end. start_s: to the first step. evaluates: it has a phase of evaluation. warm_up: the steps of its
    warm-up; 0: none is known. written: files that its ranks had open for writing, with their sizes. ports: on which its
    ranks listened, but for MASTER_PORT. counter: of the steps that it prints. saved_at: at which steps. files: what was
    done to those that look like checkpoints, by their paths within its code, or whole paths elsewhere. saves: what a
    save does.
    """

    ours: bool = False
    steps: int | None = None
    took_s: float = 0.0
    start_s: float = 0.0
    evaluates: bool = False
    warm_up: int = 0
    written: dict[str, int] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    counter: str = ""
    saved_at: list[int] = field(default_factory=list)
    files: dict[str, FileUse] = field(default_factory=dict)
    saves: SaveShape = field(default_factory=SaveShape)

    @property
    def save_every_s(self) -> float:
        """The usual time between two saves; 0 if fewer than two are known."""
        uses = [use for path, use in self.files.items() if not is_best(path)]
        times = sorted(time for use in uses for time in (*use.written, *use.named))
        return median([b - a for a, b in itertools.pairwise(times) if b - a > ONE_SAVE_S] or [0.0])

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        return cls(
            **{**values, "files": uses_from_json(values["files"]), "saves": SaveShape.from_json(values["saves"])}
        )
