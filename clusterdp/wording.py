"""Common parts of messages: durations, sizes, counts, tables, long lists, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


def duration(seconds: float) -> str:
    """Returns a duration in at most two units: `9 s`, `2 min 5 s`, `3 h 20 min` or `2 d 4 h`."""
    left = max(0, round(seconds))
    if left < 60:
        return f"{left} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    first = next(i for i, (_, size) in enumerate(units) if left >= size)
    words = []
    for word, size in units[first : first + 2]:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {word}")
    return " ".join(words)


def size(nbytes: float) -> str:
    """Returns a size such as `512 B` or `1.2 GB`, in decimal units like those of disks and quotas."""
    units, power = ("B", "kB", "MB", "GB", "TB", "PB"), 0
    while nbytes >= 999.5 and power < len(units) - 1:
        nbytes /= 1000
        power += 1
    return f"{nbytes:.3g} {units[power]}"


def some_of(names: Sequence[str], most: int = 8, separator: str = ",") -> str:
    """Returns the first names and the number of all others: `a, b and 3 more`."""
    more = len(names) - most
    return f"{separator} ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def closest(word: str, known: Iterable[str]) -> str:
    """Returns the known name that is most similar to `word`; empty if no name is similar."""
    import difflib  # takes 5 ms: imported only after a mistake

    return "".join(difflib.get_close_matches(word, list(known), 1))


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", prefix: str = "") -> str:
    """Returns `Did you mean train.lr?` (with the prefix `train.`), or `otherwise` if no known name is similar."""
    meant = closest(word, known)
    return f"Did you mean {prefix}{meant}?" if meant else otherwise


def unit_of(key: str) -> str:
    """Returns the unit that the end of the key's name means: seconds, megabytes or ""."""
    return next((word for end, word in (("_s", "seconds"), ("_mb", "megabytes")) if key.endswith(end)), "")


def shares_of(count: int, ranks: int) -> str:
    """Returns how many of `count` each rank has if they are shared as equally as possible: `2`, or `3 or 2`."""
    few, more = divmod(count, ranks)
    return f"{few + 1} or {few}" if more else str(few)


def counted(number: int, what: str) -> str:
    """Returns a number with its noun: `1 step`, `3 steps`."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def table(rows: Sequence[Sequence[str]], adjust: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Returns a line for each row, with aligned columns and without trailing spaces."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(adjust, row, widths)).rstrip() for row in rows]


def ranges(numbers: Iterable[int]) -> list[str]:
    """Returns the ranges that numbers in any order form, such as `1-3` and `7`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{first}-{last}" if last > first else f"{first}" for first, last in found]
