"""What a program makes that has a state of its own, by its text: is each of it in the checkpoints?"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterdp.check.program import Place, ProgramText
from clusterdp.plainfile import read_plain

_MAKES = {
    "scaler": re.compile(r"\bGradScaler\("),
    "optimizer": re.compile(
        r"\boptim\.(?!SGD)\w+\(|\b(?:Adam|AdamW|RMSprop|Adagrad|Lion|Adafactor)\(|\bSGD\(.*momentum"
    ),
    "scheduler": re.compile(r"\blr_scheduler\.\w+\(|\bget_\w*schedul\w*\(|\b\w+LR\("),
    "draws": re.compile(
        r"Dropout\w*\(|\bdropout\b|\brand(?:n|int|perm)?(?:_like)?\(|\brandom\.|\b(?:bernoulli|multinomial)\("
    ),
    "samples": re.compile(r"(?i)sampler|\bDataLoader\(|\brandperm\(|\bshuffle\b"),
    "restores-rng": re.compile(r"\bset_rng_state(?:_all)?\(|\brandom\.(?:setstate|set_state)\("),
}


def parts_made(text: ProgramText | None) -> Mapping[str, Place]:
    """By part, the first line that makes it: `optimizer` (one that has a state), `scaler`, `scheduler`; that draws
    random numbers, that samples data, and that restores the random numbers' state."""
    found: dict[str, Place] = {}
    for file in text.files if text else []:
        try:
            lines = read_plain(file).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            code = line.partition("#")[0]
            for part, expression in _MAKES.items():
                if part not in found and expression.search(code):
                    found[part] = Place(file, number, line.strip())
    return found


def at(place: Place) -> str:
    """`train.py:31`."""
    return f"{place.file.name}:{place.line}"
