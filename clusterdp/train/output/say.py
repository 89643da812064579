"""say: prints a line for people to this rank's log. On a full disk the line is lost."""

from __future__ import annotations

import sys

_lost = 0  # number of lines lost since the last line that was written


def say(text: str, *, error: bool = False) -> None:
    """Prints to standard output, or to standard error. say() never raises an error, also if the log is on a full
    disk."""
    global _lost
    stream = sys.stderr if error else sys.stdout
    try:
        if _lost:
            print(f"clusterdp: {_lost} lines were lost here because this log could not be written.", file=stream)
        print(text, file=stream, flush=True)
        _lost = 0
    except OSError:
        _lost += 1
