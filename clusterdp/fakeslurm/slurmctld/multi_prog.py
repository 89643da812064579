"""Reads the file of srun --multi-prog, which gives each task its own program."""

from __future__ import annotations

import re


class BadFile(Exception):
    """The error that srun prints about the file of --multi-prog, without the prefix `srun: `."""


def read(text: str, name: str, tasks: int) -> list[tuple[str, ...]]:
    """Returns the words of each task's command, by rank. Raises BadFile. `name`: the file's name in error messages."""
    found: dict[int, tuple[str, ...]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        spec, _, rest = re.sub(r"\s", " ", line.strip()).partition(" ")
        if not spec or spec.startswith("#"):
            continue
        try:
            ranks = [rank for rank in range(tasks) if rank not in found] if spec == "*" else _ranks(spec, tasks)
            for offset, rank in enumerate(ranks):
                if rank in found:
                    raise BadFile(f"Duplicate record for task {rank}")
                # In a line for `*`, %o is the rank itself.
                found[rank] = tuple(words(rest, rank, rank if spec == "*" else offset))
        except BadFile as mistake:
            raise BadFile(f"{mistake}\nLine {number} of configuration file {name} invalid") from None
    for rank in range(tasks):
        if rank not in found:
            raise BadFile(f"Configuration file {name} invalid, no record for task id {rank}")
    return [found[rank] for rank in range(tasks)]


def _ranks(spec: str, tasks: int) -> list[int]:
    ranks: list[int] = []
    for part in spec.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise BadFile(f"Invalid task range specification ({spec})")
        low, high = int(match[1]), int(match[2] or match[1])
        if high >= tasks:
            raise BadFile(f"Invalid task id, {high} >= ntasks")
        ranks += range(low, high + 1)
    return ranks


def words(text: str, rank: int, offset: int) -> list[str]:
    """Splits a line into words. Blanks in single quotes do not split, a backslash keeps the next letter unchanged, and
    %t and %o are replaced only outside quotes.
    """
    found: list[str] = []
    word, inside, letters = "", False, iter(text)
    for letter in letters:
        if letter.isspace():
            if inside:
                found.append(word)
            word, inside = "", False
            continue
        inside = True
        if letter == "'":
            for quoted in letters:
                if quoted == "'":
                    break
                word += quoted
            else:
                raise BadFile(f"Program arguments specification format invalid: {word}.")
        elif letter == "\\":
            word += next(letters, "")
        elif letter == "%":
            following = next(letters, "")
            word += {"t": str(rank), "o": str(offset)}.get(following, "%" + following)
        else:
            word += letter
    return [*found, word] if inside else found
