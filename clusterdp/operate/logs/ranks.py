"""Lists of ranks, as the user writes them and as they are printed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterdp.errors import ConfigError


@dataclass(frozen=True)
class Ranks:
    """`0,3,8-15`."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, word: str) -> Ranks:
        ranges = []
        for part in word.split(","):
            found = re.fullmatch(r" *(\d{1,9})(?:-(\d{1,9}))? *", part, re.ASCII)
            if not found or int(found[2] or found[1]) < int(found[1]):
                raise ConfigError(f"--rank: {word!r} is no list of ranks. Write e.g. 3 or 0,3,8-15.")
            ranges.append((int(found[1]), int(found[2] or found[1])))
        return cls(tuple(ranges))

    def __contains__(self, rank: int) -> bool:
        return any(low <= rank <= high for low, high in self.ranges)

    @property
    def several(self) -> bool:
        return len(self.ranges) > 1 or self.ranges[0][0] < self.ranges[0][1]

    def without(self, there: Iterable[int]) -> list[str]:
        """Those of the list that are not there, as it names them."""
        known = set(there)
        gaps = []
        for low, high in self.ranges:
            found = sorted(rank for rank in known if low <= rank <= high)
            for before, after in zip([low - 1, *found], [*found, high + 1], strict=True):
                if after - before > 1:
                    gaps.append(in_words([before + 1]) if after - before == 2 else f"{before + 1}-{after - 1}")
        return gaps


RANK_0 = Ranks(((0, 0),))


def in_words(ranks: Iterable[int]) -> str:
    """`0-3,7`."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def named(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3,7`."""
    words = in_words(ranks)
    return f"rank {words}" if words.isdigit() else f"ranks {words}"
