"""What a program makes that has a state of its own, by its text: is each of it in the checkpoints?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from clusterdp.check.program import Place, ProgramText
from clusterdp.plainfile import read_plain

_MAKES = {
    "scaler": re.compile(r"\bGradScaler\("),
    "optimizer": re.compile(
        r"\boptim\.(?!SGD)\w+\(|\b(?:Adam|AdamW|RMSprop|Adagrad|Lion|Adafactor)\(|\bSGD\(.*momentum"
    ),
    "scheduler": re.compile(r"\blr_scheduler\.\w+\(|\bget_\w*schedul\w*\(|\b\w+LR\("),
}


def parts_made(text: ProgramText | None) -> Mapping[str, Place]:
    """By part, the first line that makes it: `optimizer` (one that has a state), `scaler`, `scheduler`."""
    found: dict[str, Place] = {}
    for place, code in _lines(text):
        for part, expression in _MAKES.items():
            if part not in found and expression.search(code):
                found[part] = place
    return found


def _lines(text: ProgramText | None) -> Iterator[tuple[Place, str]]:
    for file in text.files if text else []:
        with suppress(OSError):
            for number, line in enumerate(read_plain(file).decode("utf-8", "replace").splitlines(), 1):
                yield Place(file, number, line.strip()), line.partition("#")[0]


def at(place: Place) -> str:
    """`train.py:31`."""
    return f"{place.file.name}:{place.line}"
