"""stdout and stderr of the command line: UTF-8, open, clean, and quiet once nobody can be told any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from clusterdp.errors import OutputError
from clusterdp.operate.outlet import bare, outlet


@contextmanager
def mended() -> Iterator[None]:
    """Inside, what is printed goes through an outlet."""
    mend()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(outlet, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def mend() -> None:
    """What is printed is UTF-8, as the files are from which it comes, whatever the locale. A stream that the caller has
    closed (`>&-`) leads to nowhere: else the next file to be opened would get its number, and what is meant for it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)
            os.set_inheritable(number, True)  # it is the same number, most often, which dup2 leaves as it is
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def complain(message: str) -> None:
    try:
        print(f"clusterdp: {message}", file=sys.stderr, flush=True)
    except (OSError, OutputError):  # nobody is there to be told
        abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """What is left in its buffer is for nobody. Python would complain once more when it flushes it at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), bare(stream).fileno())


def exact(stream: TextIO) -> TextIO:
    """Where every byte counts: for a file or another program as it is, for a terminal as it may be shown."""
    return stream if stream.isatty() else bare(stream)
