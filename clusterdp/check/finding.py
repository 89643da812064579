"""Finding: what would go wrong, why, and what to change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "hint"]
LEVELS: tuple[Level, ...] = ("error", "warning", "hint")


@dataclass(frozen=True)
class Finding:
    """error: the run would fail, or never start. warning: it would lose work or time. hint: it may.

    `key`: of the config, or the name of a variable; `where`: file and line of it, empty for a default.
    """

    level: Level
    key: str
    what: str
    why: str
    remedy: str
    where: str = ""


def place_of(key: str, sources: Mapping[str, str]) -> str:
    """The place of a config key, or of the first key below it: `sweep.grid.params.lr` for `sweep`; empty for a
    default."""
    return sources.get(key) or next((place for name, place in sources.items() if name.startswith(f"{key}.")), "")
