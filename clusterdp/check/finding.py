"""Finding: a mistake, its reason and its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "hint"]
LEVELS: tuple[Level, ...] = ("error", "warning", "hint")


@dataclass(frozen=True)
class Finding:
    """A finding has one of three levels. error: the run would fail, or never start. warning: the run would lose work or
    time. hint: the run may lose work or time."""

    level: Level
    key: str  # a config key, or the name of an environment variable
    what: str
    why: str
    remedy: str
    where: str = ""  # file and line that set `key`; empty if `key` has its default


def place_of(key: str, sources: Mapping[str, str]) -> str:
    """Returns the file and line that set a config key, or the first key below (`sweep.grid.params.lr` for `sweep`);
    empty if the key has its default."""
    return sources.get(key) or next((place for name, place in sources.items() if name.startswith(f"{key}.")), "")
