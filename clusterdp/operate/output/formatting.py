"""Formats times, sizes, numbers and colours for a reader."""

from __future__ import annotations

import os
import shlex
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from pathlib import Path

CODES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class Colour:
    """Colours a word if `out` is a terminal that wants colours (https://no-color.org), else returns the word
    unchanged."""

    def __init__(self, out: TextIO):
        self.on = is_terminal(out)

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{CODES[style]}m{text}\x1b[0m" if self.on and text else text


def is_terminal(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def ago(then: float, now: float) -> str:
    """Returns the age of a time in one unit: `just now`, `40 s ago`, `2 min ago` or `5 d ago`."""
    seconds = now - then
    if seconds < 2:
        return "just now"
    for word, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {word} ago"
    return f"{int(seconds)} s ago"


def clock(then: float, now: float | None = None) -> str:
    """Returns a time as `10:41:09`. If `now` is given and `then` was on another day, the date is added."""
    local = time.localtime(then)
    if now is not None and time.localtime(now)[:3] != local[:3]:
        return time.strftime("%d %b %H:%M:%S", local)
    return time.strftime("%H:%M:%S", local)


def number(value: object) -> str:
    """Returns a number with four significant digits."""
    if isinstance(value, int) and value.bit_length() > 1000:  # str() raises ValueError above 4,300 digits
        return hex(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shown_path(path: Path) -> str:
    """Returns the path as the user would type it: relative if the path is below the working directory, and quoted for
    the shell."""
    try:
        path = path.absolute().relative_to(os.getcwd())
    except ValueError:
        pass
    return shlex.quote(str(path))


def measured(metrics: dict[str, Any], most: int = 6) -> str:
    """Returns metrics as text, ordered by metric_rank(): `test_accuracy 0.981 loss 0.0123 lr 0.1`. Long texts are left
    out; --json shows them."""
    values = ((key, number(metrics[key])) for key in sorted(metrics, key=metric_rank))
    return "  ".join(f"{key} {value}" for key, value in islice((each for each in values if len(each[1]) <= 12), most))


def metric_rank(name: str) -> int:
    """Returns the rank of a metric for sorting by interest: first results on held-out data, then losses."""
    return 0 if name.startswith(("test", "val", "eval")) else 1 if name.endswith("loss") else 2
