"""Choice: the log lines that the user asks for by the options on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from clusterdp.errors import ConfigError
from clusterdp.wording import ranges

ON_A_TERMINAL = 1000  # lines that a terminal gets, unless -n is given


@dataclass(frozen=True)
class Ranks:
    """A list of ranks such as `0,3,8-15`."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def read(cls, word: str) -> Ranks:
        ranges = []
        for part in word.split(","):
            found = re.fullmatch(r" *(\d{1,9})(?:-(\d{1,9}))? *", part, re.ASCII)
            if not found or int(found[2] or found[1]) < int(found[1]):
                raise ConfigError(f"--rank: {word!r} is not a list of ranks. Write e.g. 3 or 0,3,8-15.")
            ranges.append((int(found[1]), int(found[2] or found[1])))
        return cls(tuple(ranges))

    def __contains__(self, rank: int) -> bool:
        return any(low <= rank <= high for low, high in self.ranges)

    @property
    def several(self) -> bool:
        return len(self.ranges) > 1 or self.ranges[0][0] < self.ranges[0][1]

    def without(self, there: Iterable[int]) -> list[str]:
        """Returns the listed ranks that are not in `there`, as words such as `3` or `8-15`."""
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
    """Returns the list as text, for example `0-3,7`."""
    return ",".join(ranges(ranks))


def named(ranks: Iterable[int], noun: str = "rank") -> str:
    """Returns the list as text with the noun, for example `rank 3` or `ranks 0-3,7`."""
    words = in_words(ranks)
    return f"{noun} {words}" if words.isdigit() else f"{noun}s {words}"


@dataclass(frozen=True)
class Choice:
    """The lines that `clusterdp logs` prints."""

    ranks: Ranks | None = RANK_0  # None: all
    attempt: str | None = None  # a name (`123.1`), a number (`2`) or `all`; None: the newest attempt
    last: int | None = None  # last lines of each log to print, or with `errors` the last errors; None: all
    errors: bool = False
    follow: bool = False
    unasked: bool = False  # True: `last` is a default, and the user gave no -n

    @classmethod
    def read(
        cls,
        *,
        rank: str | None = None,
        every: bool = False,
        attempt: str | None = None,
        errors: bool = False,
        last: str | None = None,
        follow: bool = False,
        terminal: bool = False,
    ) -> Choice:
        """Returns the choice that the options describe. Raises ConfigError for an invalid option, with its name.
        `terminal` means that a person reads the output: a long log is then printed as a whole only on request."""
        if rank is not None and every:
            raise ConfigError("--rank and --all: are two answers to one question. Give one of them.")
        ranks = None if every or (errors and rank is None) else Ranks.read(rank or "0")
        count = _count(last)
        unasked = terminal and last is None and not errors
        if unasked:
            count = ON_A_TERMINAL
        return cls(ranks, attempt, count, errors, follow, unasked)

    @property
    def labelled(self) -> bool:
        return self.ranks is None or self.ranks.several

    def wants(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


def _count(word: str | None) -> int | None:
    if word is None or word == "all":
        return None
    if not re.fullmatch(r"\d{1,9}", word, re.ASCII):
        raise ConfigError(f"-n: {word!r} is not a number of lines. Write e.g. 100, or all.")
    return int(word)
