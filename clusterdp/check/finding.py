"""Finding: a mistake, its reason and its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "hint"]
LEVELS: tuple[Level, ...] = ("error", "warning", "hint")


@dataclass(frozen=True)
class Finding:
    """error: the run would fail, or never start. warning: it would lose work or time. hint: it may do so."""

    level: Level
    key: str  # a config key, or the name of a variable
    what: str
    why: str
    remedy: str
    where: str = ""  # file and line of `key`; empty for a default


def place_of(key: str, sources: Mapping[str, str]) -> str:
    """Returns the place of a config key, or of the first key below it (`sweep.grid.params.lr` for `sweep`); empty for a
    default."""
    return sources.get(key) or next((place for name, place in sources.items() if name.startswith(f"{key}.")), "")
