"""Reads and writes host list expressions, `n[1-3,7],m05`, like `scontrol show hostnames|hostlist`, but without starting
a process.

Leading zeros count: n1, n01 and n001 are three hosts, and a range has the width of its low end.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from math import prod

MAX_HOSTS = 65_536  # hosts of an expression: a typing error must not fill the memory


class HostlistError(ValueError):
    """Raised if a text is not a host list expression."""


def expand(expression: str, *, strict: bool = False) -> list[str]:
    """Returns the hosts of an expression, in Slurm's order, with repetitions. Raises HostlistError.

    strict: text after the last bracket (`n[1-2]-ib`) is an error, because Slurm 22.05 refuses such text; later versions
    allow it.
    """
    hosts: list[str] = []
    for part in _parts(expression):
        hosts += _expand_part(part, strict)
        if len(hosts) > MAX_HOSTS:
            raise _too_many(expression, len(hosts))
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """Returns the expression for these hosts. Order and repetitions are kept; neighbours are joined (n2,n1 ->
    `n[2,1]`)."""
    return _compress(tuple(hosts))


def joined(text: str) -> str:
    """Returns a list of hosts as one expression; the text itself if it is none."""
    try:
        return compress(expand(text))
    except HostlistError:
        return text


@lru_cache(maxsize=256)  # a listing of jobs repeats a few host lists many times
def _compress(hosts: tuple[str, ...]) -> str:
    groups: list[tuple[str, list[list[str]]]] = []  # (prefix, ranges of [low, high] as digits); a bare name: no ranges
    for host in hosts:
        prefix, digits = _split(host)
        if not digits or not groups or groups[-1][0] != prefix or not groups[-1][1]:
            groups.append((prefix, [[digits, digits]] if digits else []))
            continue
        ranges = groups[-1][1]
        low, high = ranges[-1]
        if digits == f"{int(high) + 1:0{len(low)}}":
            ranges[-1][1] = digits
        else:
            ranges.append([digits, digits])
    return ",".join(prefix + _brackets(ranges) for prefix, ranges in groups)


def compress_sorted(hosts: Iterable[str]) -> str:
    """Returns the expression for the sorted hosts, like `scontrol show hostlistsorted`."""
    return compress(sort(hosts))


def sort(hosts: Iterable[str]) -> list[str]:
    """Returns the hosts sorted by name in natural order, then by the width of the number, then by the number."""

    def key(host: str) -> tuple[list[tuple[int, str]], int, int]:
        prefix, digits = _split(host)
        words = [(int(word), "") if word.isdigit() else (-1, word) for word in re.findall(r"\d+|\D+", prefix)]
        return words, len(digits), int(digits or -1)

    return sorted(sorted(hosts), key=key)


def _split(host: str) -> tuple[str, str]:
    digits = re.search(r"[0-9]*$", host)
    assert digits is not None  # the pattern also matches an empty end
    return host[: digits.start()], digits[0]


def _brackets(ranges: list[list[str]]) -> str:
    if not ranges or (len(ranges) == 1 and ranges[0][0] == ranges[0][1]):
        return ranges[0][0] if ranges else ""
    return "[" + ",".join(low if low == high else f"{low}-{high}" for low, high in ranges) + "]"


def _parts(expression: str) -> Iterator[str]:
    """Splits an expression at commas and blanks outside of brackets."""
    depth, part = 0, ""
    for letter in expression:
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise HostlistError(f"{expression}: the brackets do not match. Write e.g. n[1-3,7].")
        if depth == 0 and letter in ", \t\n":
            if part:
                yield part
            part = ""
        else:
            part += letter
    if depth:
        raise HostlistError(f"{expression}: a bracket is not closed. Write e.g. n[1-3,7].")
    if part:
        yield part


def _expand_part(part: str, strict: bool) -> list[str]:
    *heads, tail = re.split(r"(?<=\])", part)
    if not heads:
        return [part]
    if strict and tail:
        raise HostlistError(f"{part}: nothing may follow the last bracket in this version of Slurm.")
    names, ranges = [], []
    for head in heads:
        name, _, inside = head[:-1].partition("[")
        names.append(name)
        ranges.append([number for word in inside.split(",") for number in _range(word)])
    if (total := prod(map(len, ranges))) > MAX_HOSTS:
        raise _too_many(part, total)
    # In Slurm's own order, the last bracket varies fastest, then the first, then the second, and so on.
    hosts = []
    for numbers in product(*reversed(ranges[:-1])):
        before = "".join(name + number for name, number in zip(names, reversed(numbers), strict=False))
        hosts += [before + names[-1] + number + tail for number in ranges[-1]]
    return hosts


def _too_many(text: str, hosts: int) -> HostlistError:
    return HostlistError(f"{text[:80]!r}: too many hosts ({hosts}). The limit is {MAX_HOSTS}.")


def _range(word: str) -> list[str]:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]*))?", word)
    if not match or (match[2] and int(match[2]) < int(match[1])):
        raise HostlistError(f"{word!r}: not a range of host numbers. Write e.g. 1-3 or 001-010.")
    low, high = int(match[1]), int(match[2] or match[1])
    if high - low >= MAX_HOSTS:
        raise _too_many(word, high - low + 1)
    return [f"{number:0{len(match[1])}}" for number in range(low, high + 1)]


def hosts_of(expression: str) -> set[str]:
    """Returns the hosts of a host list; empty if the text is a file name, or not a host list."""
    try:
        return set(expand(expression)) if expression != "(null)" and "/" not in expression else set()
    except HostlistError:
        return set()
