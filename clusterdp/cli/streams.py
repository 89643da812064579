"""stdout and stderr of the command line: open, in UTF-8, without control characters, silent once they are closed."""

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
    """Makes all output in its body go through a CleanStream."""
    prepare()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(clean_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def prepare() -> None:
    """Makes the output UTF-8 in any locale, like the files that are printed. A stream that the caller has closed
    (`>&-`) becomes /dev/null: else the next opened file would get the stream's number, and its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)  # dup2() changes nothing if `null` is `number` already, which is usual
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def complain(error: Exception) -> None:
    try:
        print(f"clusterdp: {_in_words(error)}", file=sys.stderr, flush=True)
    except (OSError, OutputError):  # stderr is closed
        abandon(sys.stderr)


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return _unwritable(error)
    if isinstance(error, OSError):  # for a file without an own error class
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{error.strerror or error}. Look at that path."
    return str(error)


def _unwritable(error: UnicodeEncodeError) -> str:
    if error.encoding == "utf-8":  # a word is not UTF-8, and Python keeps its bytes as surrogates
        before, after = error.object[: error.start], error.object[error.start :]
        line = before[before.rfind("\n") + 1 :] + after.partition("\n")[0]
        return f"{line.encode(errors='surrogateescape')!r}: is not UTF-8. Set the terminal to UTF-8."
    return f"{error.object!r} has letters that this locale lacks. Set LC_ALL=C.UTF-8."  # file names are in its encoding


def abandon(stream: TextIO) -> None:
    """Discards the stream's buffer. Python would print another error when it flushes the stream at its exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), underlying(stream).fileno())
