"""Facts: the properties of an undisturbed run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from clusterdp.rehearse.observe.file_use import ONE_SAVE_S, FileUse, is_best, uses_from_json
from clusterdp.rehearse.observe.save_shape import SaveShape


@dataclass(frozen=True)
class Facts:
    """The properties of an undisturbed run, as Observer has measured them."""

    ours: bool = False  # whether the program has saved checkpoints of ours
    steps: int | None = None  # steps of the whole run; None if the program prints no steps
    took_s: float = 0.0  # seconds from the start of the ranks to their end
    start_s: float = 0.0  # seconds from the start of the ranks to the first step
    evaluates: bool = False  # whether the run has a phase of evaluation
    warm_up: int = 0  # steps of the learning rate's warm-up; 0 if no warm-up is known
    written: dict[str, int] = field(default_factory=dict)  # sizes of the files that ranks had open for writing
    ports: list[int] = field(default_factory=list)  # ports on which the ranks listened, without MASTER_PORT
    counter: str = ""  # the name of the counter of printed steps (printed_steps.py)
    saved_at: list[int] = field(default_factory=list)  # the steps at which the run saved
    # Use of each file that looks like a checkpoint, by its path: relative to the working folder, or absolute elsewhere.
    files: dict[str, FileUse] = field(default_factory=dict)
    saves: SaveShape = field(default_factory=SaveShape)

    @property
    def save_every_s(self) -> float:
        """The usual seconds between two saves; 0 if fewer than two saves are known."""
        uses = [use for path, use in self.files.items() if not is_best(path)]
        times = sorted(time for use in uses for time in (*use.written, *use.named))
        return median([b - a for a, b in itertools.pairwise(times) if b - a > ONE_SAVE_S] or [0.0])

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Facts:
        return cls(
            **{**values, "files": uses_from_json(values["files"]), "saves": SaveShape.from_json(values["saves"])}
        )
