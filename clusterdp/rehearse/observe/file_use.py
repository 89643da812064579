"""FileUse: what has been done to one file, as the kernel tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

ONE_SAVE_S = 0.2  # of several files
# By its name alone: a folder may be called anything.
_CHECKPOINT = re.compile(
    r"(?i)\.(pt|pth|ckpt|bin|safetensors|pkl|pickle|npz|npy|tar)([._-]\w+)*$|(^|[._-])te?mp([._-]|$)"
)


@dataclass
class FileUse:
    """Times, in seconds since 1970: read: at the end of each reading; written: at the end of each writing, by whatever
    way that ended; named: at each rename to this name; gone: at each rename away from it, and each deletion.
    by: the ranks that were seen to have it open for writing at the same time. steps: for each time in written and named
    together, in their order, how far rank 0 had come by what it had told; 0 if it had told nothing. size: bytes, after
    the last of them."""

    read: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    named: list[float] = field(default_factory=list)
    gone: list[float] = field(default_factory=list)
    by: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    size: int = 0

    @property
    def in_place(self) -> bool:
        """It was written under the name that it has kept."""
        return bool(self.written) and not self.named and not any(at >= self.written[0] for at in self.gone)

    def step_at(self, time: float) -> int | None:
        """The step of the file that was there at this time; None if it is not known."""
        ready = sorted((*self.written, *self.named))
        step = next((step for at, step in reversed([*zip(ready, self.steps, strict=False)]) if at < time), 0)
        return step or None

    def without(self, windows: Sequence[tuple[float, float]]) -> FileUse:
        """The same without what was written or named within these times."""

        def is_out(at: float) -> bool:
            return not any(began <= at <= ended for began, ended in windows)

        steps = [step for at, step in zip(sorted((*self.written, *self.named)), self.steps, strict=False) if is_out(at)]
        return replace(self, written=[*filter(is_out, self.written)], named=[*filter(is_out, self.named)], steps=steps)

    def whole_at(self, time: float) -> float | None:
        """When the file that was there at this time got its content; None if there was none."""
        ready = max((at for at in (*self.written, *self.named) if at < time), default=None)
        gone = max((at for at in self.gone if at < time), default=0.0)
        return None if ready is None or gone >= ready else ready


def uses_from_json(values: Mapping[str, dict[str, Any]]) -> dict[str, FileUse]:
    """By path."""
    return {path: FileUse(**use) for path, use in values.items()}


def is_checkpoint(path: str) -> bool:
    """Whether a file looks like a checkpoint, or like one that is being written."""
    return _CHECKPOINT.search(PurePath(path).name) is not None


def is_best(path: str) -> bool:
    """Whether it is named as a model that is kept for its score."""
    return re.search(r"(?i)best|(?:^|[._-])ema(?:[._-]|$)", PurePath(path).stem) is not None


def series_of(path: str) -> str:
    """The same for files whose names differ in their numbers alone."""
    return re.sub(r"\d+", "#", path)
