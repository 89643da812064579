"""stdout and stderr of the command line: open, in UTF-8, without control characters, and silent once they are
closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from clusterdp.errors import OutputError
from clusterdp.operate.output.terminal import clean_stream, underlying


@contextmanager
def prepared() -> Iterator[None]:
    """Within it, whatever is printed goes through a CleanStream."""
    prepare()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(clean_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def prepare() -> None:
    """Makes the output UTF-8 whatever the locale, as the files are from which it comes. A stream that the caller has
    closed (`>&-`) becomes /dev/null: else the next file that is opened would get its number, and its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)  # it is the same number, most often, which dup2 leaves as it is
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def complain(error: Exception) -> None:
    try:
        print(f"clusterdp: {_in_words(error)}", file=sys.stderr, flush=True)
    except (OSError, OutputError):  # nobody can read it
        abandon(sys.stderr)


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return _unwritable(error)
    if isinstance(error, OSError):  # of a file for which no code has an error of its own
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{error.strerror or error}. Look at that path."
    return str(error)


def _unwritable(error: UnicodeEncodeError) -> str:
    if error.encoding == "utf-8":  # a word's bytes are no text, and Python has kept them as what they are
        before, after = error.object[: error.start], error.object[error.start :]
        line = before[before.rfind("\n") + 1 :] + after.partition("\n")[0]
        return f"{line.encode(errors='surrogateescape')!r}: is not UTF-8. Set the terminal to UTF-8."
    return f"{error.object!r} has letters that this locale lacks. Set LC_ALL=C.UTF-8."  # by which files are named


def abandon(stream: TextIO) -> None:
    """Drop what is left in its buffer. Python would complain once more when it flushes the stream at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), underlying(stream).fileno())
