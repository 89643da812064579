"""FileUse: the reads, writes and renames of one file, as the kernel reports them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

ONE_SAVE_S = 0.2  # longest time between two files of one save
# Only the file's name is searched, because a folder may have any name.
_CHECKPOINT = re.compile(
    r"(?i)\.(pt|pth|ckpt|bin|safetensors|pkl|pickle|npz|npy|tar)([._-]\w+)*$|(^|[._-])te?mp([._-]|$)"
)


@dataclass
class FileUse:
    """The use of one file by a run. Times are in seconds since 1970."""

    read: list[float] = field(default_factory=list)  # when each reading of the file ended
    written: list[float] = field(
        default_factory=list
    )  # when the last bytes of each writing came, even if cut by a kill
    closed: list[float] = field(
        default_factory=list
    )  # when the end of each writing was noticed, late on a busy machine
    named: list[float] = field(default_factory=list)  # when the file was renamed to this name
    gone: list[float] = field(default_factory=list)  # when the file was renamed away from this name, or deleted
    by: list[int] = field(default_factory=list)  # ranks that had the file open for writing at the same time
    # For each time in `written` and `named` together, in order: the last step that rank 0 had printed when the file was
    # opened, or 0.
    steps: list[int] = field(default_factory=list)
    size: int = 0  # size in bytes after the last writing or rename

    @property
    def in_place(self) -> bool:
        """Whether the file was written under its final name, not renamed from a temporary name."""
        return bool(self.written) and not self.named and not any(at >= self.written[0] for at in self.gone)

    def step_at(self, time: float) -> int | None:
        """Returns the step at which the file got the content that it had at this time, or None if the step is not
        known."""
        ready = sorted((*self.written, *self.named))
        step = next((step for at, step in reversed([*zip(ready, self.steps, strict=False)]) if at < time), 0)
        return step or None

    def without(self, windows: Sequence[tuple[float, float]]) -> FileUse:
        """Returns a copy without the writes and renames within these windows of time."""

        def is_out(at: float) -> bool:
            return not any(began <= at <= ended for began, ended in windows)

        steps = [step for at, step in zip(sorted((*self.written, *self.named)), self.steps, strict=False) if is_out(at)]
        return replace(self, written=[*filter(is_out, self.written)], named=[*filter(is_out, self.named)], steps=steps)

    def whole_at(self, time: float) -> float | None:
        """Returns when the file got the content that it had at this time, or None if there was no file."""
        ready = max((at for at in (*self.written, *self.named) if at < time), default=None)
        gone = max((at for at in self.gone if at < time), default=0.0)
        return None if ready is None or gone >= ready else ready


def uses_from_json(values: Mapping[str, dict[str, Any]]) -> dict[str, FileUse]:
    """Returns FileUse objects by path, read from JSON."""
    return {path: FileUse(**use) for path, use in values.items()}


def is_checkpoint(path: str) -> bool:
    """Whether a file has the name of a checkpoint, or of a checkpoint that is being written."""
    return _CHECKPOINT.search(PurePath(path).name) is not None


def is_best(path: str) -> bool:
    """Whether a file has the name of a model that is kept for its score."""
    return re.search(r"(?i)best|(?:^|[._-])ema(?:[._-]|$)", PurePath(path).stem) is not None


def series_of(path: str) -> str:
    """Returns the path with `#` for each number: the same text for all files of a series."""
    return re.sub(r"\d+", "#", path)
