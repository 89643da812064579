"""Text for a terminal: without control characters, and not wider than the terminal.

CleanStream removes control characters. Other people write names, nodes, errors and logs. An escape sequence in such a
text could move the cursor, rename the window or answer in place of the user. Therefore escape sequences are removed
from all output.

Colours are harmless. If the terminal wants colours, clusterdp's own colours stay; in a log, all colours and the \\r of
progress bars stay.

A text to copy, such as a command or a path, is never broken: if it is too wide, the terminal wraps it."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO, cast

from clusterdp.errors import OutputError
from clusterdp.operate.output.formatting import CODES, is_terminal

CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # such as ESC [ 2 J, which clears the screen
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # such as ESC ] 0 ; title BEL, which sets the window's title
    r"|\x1b[ -/]*[0-~]?|\x9b[0-?]*[ -/]*[@-~]"
    # Single characters: C1, C0 except tab and newline, and characters that end a line or change the direction of text
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)
NONE = re.compile(r"(?!)")
OURS = re.compile(rf"\x1b\[(?:0|{'|'.join(CODES.values())})m")
COLOURS = re.compile(r"\x1b\[[\d;:]*m|\r")
BARS = re.compile(r"\r")
ALL = re.compile(r".*", re.DOTALL)
ENDLESS = sys.maxsize  # stands for the width of a pipe or a file: no line is too long
LEAST = 20  # columns that text gets even on a narrow terminal
CODE = re.compile(r"\x1b\[[\d;]*m")
# Text in backquotes, such as a command, and coloured text are never broken: each counts as a single word.
WORD = re.compile(r"\s*(?:[^\s`]*`[^`]*`[^\s`]*|\x1b\[[\d;]*m[^\x1b]*\x1b\[0m\S*|\S+)")


def printable(text: str, keeps: re.Pattern[str] = NONE) -> str:
    """Returns the text without control characters and escape sequences, except those that `keeps` matches."""
    return CONTROL.sub(lambda found: found[0] if keeps.fullmatch(found[0]) else "", text)


class CleanStream:
    """A text stream that writes only printable text to the `underlying` stream."""

    def __init__(self, underlying: TextIO, keeps: re.Pattern[str]):
        self.underlying = underlying
        self.keeps = keeps

    def write(self, text: str) -> int:
        self._do(lambda: self.underlying.write(printable(text, self.keeps)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._do(self.underlying.flush)

    def _do(self, what: Any) -> None:
        try:
            what()
        except BrokenPipeError:  # the reader has closed the pipe, which is not an error
            raise
        except OSError as error:
            name = getattr(self.underlying, "name", "output")
            raise OutputError(f"{name}: cannot be written: {error.strerror}. Print to another place.") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.underlying, name)


def clean_stream(stream: TextIO) -> TextIO:
    return cast(TextIO, CleanStream(stream, OURS if is_terminal(stream) else NONE))


def for_logs(out: TextIO) -> TextIO:
    return cast(TextIO, CleanStream(underlying(out), COLOURS if is_terminal(out) else BARS))


def exact(out: TextIO) -> TextIO:
    """Returns a stream that cleans its output on a terminal, but writes it unchanged to a file or a pipe."""
    return out if out.isatty() else cast(TextIO, CleanStream(underlying(out), ALL))


def underlying(out: TextIO) -> TextIO:
    return out.underlying if isinstance(out, CleanStream) else out


def width_of(out: TextIO) -> int:
    """Returns the width of `out` in columns; ENDLESS if `out` is not a terminal."""
    return terminal_columns() if out is sys.stdout and out.isatty() else ENDLESS


def terminal_columns() -> int:
    """Returns the width of the terminal, or 80, as shutil.get_terminal_size() does; but shutil loads lzma and others,
    which takes 2 ms of `status`."""
    columns = 0
    with suppress(KeyError, ValueError):
        columns = int(os.environ["COLUMNS"])
    with suppress(OSError, ValueError, AttributeError):
        columns = columns if columns > 0 else os.get_terminal_size(cast(TextIO, sys.__stdout__).fileno()).columns
    return columns if columns > 0 else 80


def filled(first: str, words: str, columns: int) -> list[str]:
    """Returns `first` followed by `words`, broken into lines; in all lines, the words begin in the same column."""
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
    """Returns how many columns the text takes on a terminal. Escape sequences of colours take no column."""
    if "\x1b" in text:
        text = CODE.sub("", text)
    return len(text) if text.isascii() else sum(map(wide_one, text))


def wide_one(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
