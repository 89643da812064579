"""Splits a shell script into commands and words, to find the programs and ports in them. The script is not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

HERE = re.compile(r"<<-?\s*['\"]?(\w+)")
SPLIT = re.compile(r"\|\||&&|\|&|;|(?<![<>])[|&](?![<>])")
FIXED_PORT = re.compile(
    r"\bMASTER_PORT=[\"']?[0-9]{2,5}\b|--master[_-]port[= ][\"']?[0-9]{2,5}\b|--main_process_port[= ][\"']?[0-9]{2,5}\b"
    r"|--rdzv[_-]endpoint[= ][\"']?[^\s\"']*:[0-9]{2,5}\b"
)


@dataclass(frozen=True)
class ShellCommand:
    """A simple command of a shell script."""

    line: int  # line number, which counts from 1
    text: str
    words: list[str]
    in_background: bool = False  # an `&` follows the command, directly or later in its line


def commands_of(text: str) -> Iterator[ShellCommand]:
    """Yields the simple commands of a script, including those in loops and branches. A line with an unclosed quote is
    skipped."""
    for line, whole in _logical_lines(text):
        for part, in_background in _parts(whole):
            try:
                words = shlex.split(part, comments=True)
            except ValueError:
                continue
            while words and (re.fullmatch(r"\w+=.*", words[0], re.DOTALL) or words[0] in KEYWORDS):
                words = words[1:]
            if words:
                yield ShellCommand(line, part.strip(), words, in_background)


KEYWORDS = frozenset("then else do if while until elif ! { ( time".split())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of a script. Lines that a backslash continues are joined. The lines of here-documents are
    skipped."""
    start, held, until = 1, "", None
    for number, line in enumerate(text.splitlines(), 1):
        if until is not None:
            until = None if line.strip() == until else until
            continue
        start = start if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        whole, held = held + line, ""
        if not whole.lstrip().startswith("#"):
            yield start, whole
        if here := HERE.search(whole):
            until = here[1]


def _parts(line: str) -> list[tuple[str, bool]]:
    """Splits a line at `;`, `|`, `&&`, `&` outside of quotes and comments. Returns pairs (part, whether an `&`
    follows)."""
    hidden = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|(?<!\S)#.*", lambda found: "q" * len(found[0]), line)
    parts, start = [], 0
    last = max((found.end() for found in SPLIT.finditer(hidden) if found[0] == "&"), default=0)
    for found in SPLIT.finditer(hidden):
        parts.append((line[start : found.start()], start < last))
        start = found.end()
    return [*parts, (line[start:], False)]


def fixed_ports(text: str) -> list[tuple[int, str]]:
    """Returns (line, text) of each hard-coded port in a script. `${MASTER_PORT:-29500}` is a default, and not
    hard-coded."""
    lines = text.splitlines()
    return [
        (number, line.strip())
        for number, line in enumerate(lines, 1)
        if not line.lstrip().startswith("#") and FIXED_PORT.search(line)
    ]


def has_trap(text: str) -> bool:
    return re.search(r"^\s*trap\b", text, re.MULTILINE) is not None
