"""%j, %t, %5N ... in the names of output files."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Compiled here, once: each slurmstepd is a fresh copy of a process that has not used them yet.
FIELD = re.compile(r"%(\d*)([a-zA-Z%])")
LETTER = re.compile(r"(?<!%)%\d*([a-zA-Z])")


def expand(pattern: str, values: Mapping[str, object]) -> str:
    """The name with `values` by letter. Unknown letters stay; numbers are padded with zeros to a given width.

    A backslash anywhere in the last part of the name keeps Slurm from replacing anything, and is removed.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def replacement(match: re.Match[str]) -> str:
        width, letter = match[1], match[2]
        if letter == "%":
            return "%"
        if letter not in values:
            return match[0]
        text = str(values[letter])
        return text.zfill(min(int(width), 10)) if width and text.isdigit() else text

    return FIELD.sub(replacement, pattern)


def separates(pattern: str) -> str:
    """ "task" or "node" if each task or node gets a file of its own, else ""."""
    letters = set(LETTER.findall(pattern.replace("%%", "")))
    if "\\" in pattern:
        return ""
    return "task" if "t" in letters else "node" if letters & {"n", "N"} else ""
