"""How text fits a terminal. What is meant to be copied as a whole, a command or a path, is never broken: if it is wider
than the terminal, that wraps it."""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from typing import TextIO

NONE = sys.maxsize  # of a pipe or a file, where no line is too long
LEAST = 20  # columns that words get, however narrow the terminal is
CODE = re.compile(r"\x1b\[[\d;]*m")
# One is `a command`, too, and what has a colour.
WORD = re.compile(r"\s*(?:[^\s`]*`[^`]*`[^\s`]*|\x1b\[[\d;]*m[^\x1b]*\x1b\[0m\S*|\S+)")


def width_of(out: TextIO) -> int:
    """In columns; NONE if it is no terminal."""
    return shutil.get_terminal_size().columns if out is sys.stdout and out.isatty() else NONE


def filled(first: str, words: str, columns: int) -> list[str]:
    """`words` behind `first`, in lines that begin below one another."""
    indent = wide(first)
    if indent + wide(words) <= columns:
        return [first + words]
    lines, room = [""], max(LEAST, columns - indent)
    for word in WORD.findall(words):
        if lines[-1] and wide(lines[-1] + word) > room:
            lines.append("")
        lines[-1] += word if lines[-1] else word.lstrip()
    return [first + lines[0], *(" " * indent + line for line in lines[1:])]


def wide(text: str) -> int:
    """How many columns it takes on a terminal. Colours take none."""
    if "\x1b" in text:
        text = CODE.sub("", text)
    return len(text) if text.isascii() else sum(map(wide_one, text))


def wide_one(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
