"""How a duration is written for a reader."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`9 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`: two units at most."""
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
