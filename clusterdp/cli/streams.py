"""Prepares stdout and stderr of the command line: both are open, in UTF-8, without control characters, and ignore
output once their reader is gone."""

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
    """In the body of the with statement, all output goes through a CleanStream."""
    prepare()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(clean_stream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def prepare() -> None:
    """Makes the output UTF-8 in any locale, because the printed files are UTF-8. A stream that the caller has closed
    (`>&-`) is redirected to /dev/null: else the next opened file would get the stream's descriptor, and so its
    output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)  # needed if `null` equals `number`, because dup2() then does nothing
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def complain(error: Exception) -> None:
    try:
        print(f"clusterdp: {_in_words(error)}", file=sys.stderr, flush=True)
    except (OSError, OutputError):  # stderr is closed: no place to print the error
        abandon(sys.stderr)


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return _unwritable(error)
    if isinstance(error, OSError):  # an error of a file that no other class covers
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return f"{where}{error.strerror or error}. Look at that path."
    return str(error)


def _unwritable(error: UnicodeEncodeError) -> str:
    if error.encoding == "utf-8":  # a word was not UTF-8: Python keeps its bytes as surrogates
        before, after = error.object[: error.start], error.object[error.start :]
        line = before[before.rfind("\n") + 1 :] + after.partition("\n")[0]
        return f"{line.encode(errors='surrogateescape')!r}: is not UTF-8. Set the terminal to UTF-8."
    return f"{error.object!r} has letters that this locale lacks. Set LC_ALL=C.UTF-8."  # a file name's


def abandon(stream: TextIO) -> None:
    """Discards the stream's buffer. Else Python would print another error at its exit, when the stream is flushed."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), underlying(stream).fileno())
