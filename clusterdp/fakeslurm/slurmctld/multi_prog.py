"""srun --multi-prog: a file that gives each task a program of its own."""

from __future__ import annotations

import re


class BadFile(Exception):
    """The message of srun on the file, without its own name in front."""


def read(text: str, name: str, tasks: int) -> list[tuple[str, ...]]:
    """The words of each task, by rank; raises BadFile. `name` is the name of the file, for messages."""
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
                # For * the offset is the rank itself.
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
    """Split a line into words: single quotes group, a backslash takes the next letter as it is, %t and %o are replaced
    outside of quotes only.
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
