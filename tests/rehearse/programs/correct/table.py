"""How each correct program is run, and the libraries that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DRILLS = ("preempted", "rank-killed", "node-lost", "killed-while-saving", "disk-full")


@dataclass(frozen=True)
class Correct:
    """needs: packages, beside those of the project. config: but for `command`. inapplicable: drills that cannot be
    made, and a word of the reason."""

    ranks: int = 1
    needs: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    inapplicable: dict[str, str] = field(default_factory=dict)


CORRECT: dict[str, Correct] = {}
IN_TEST_ALL: tuple[str, ...] = ()
