"""The steps that a program prints, of whichever counter is the one of its training."""

from __future__ import annotations

import re
from pathlib import Path

# `step 12`, `iter 12:`, `global_step=12`, and a progress bar's `12/60 [`.
_STEP = re.compile(r"(?i)(?:\b(?:global[_ ])?(?:step|iter|iteration|batch)s?\b\W{0,3}(\d+)|\b(\d+)/\d+ \[)")
_NUMBER = re.compile(r"[-+]?\d[\d.,:e+-]*")
TAIL = 4096  # bytes of a log in which the last step is looked for


def steps_of(text: str, counter: str = "") -> list[int]:
    """Those of this counter, or else of the likeliest."""
    found = _counters(text)
    return found.get(counter or _likeliest(found), [])


def counter_of(text: str) -> str:
    """The counter of the training: it never goes back, as those of an epoch or of an evaluation do. Named by what
    stands before it in its lines; empty if there is none."""
    return _likeliest(_counters(text))


def read_steps(log: Path, counter: str = "") -> list[int]:
    try:
        return steps_of(log.read_text("utf-8", "replace"), counter)
    except OSError:
        return []


def last_step(log: Path, counter: str = "") -> int | None:
    """The last one that a log tells of."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    steps = steps_of(text, counter)
    return steps[-1] if steps else None


def _counters(text: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for line in re.split(r"[\r\n]", text):
        if line.startswith(("slurmstepd:", "srun:")):  # what Slurm calls a step is none
            continue
        for match in _STEP.finditer(line):
            group = 1 if match[1] else 2
            before = _NUMBER.sub("#", line[: match.start(group)]).strip().lower()
            found.setdefault(before, []).append(int(match[group]))
    return found


def _likeliest(found: dict[str, list[int]]) -> str:
    """Of those that never go back the one with most values; of equals, that with the least in front of it."""
    forward = {name: set(steps) for name, steps in found.items() if steps == sorted(steps)}
    return max(forward, key=lambda name: (len(forward[name]), -len(name)), default="")
