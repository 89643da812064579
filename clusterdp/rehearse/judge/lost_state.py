"""What differs at the end of a run, and whether the checkpoints show why: a part that the program makes, and whose
state is in none of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.check.program import Place
from clusterdp.rehearse.judge.program_parts import at
from clusterdp.rehearse.observe.file_use import is_best
from clusterdp.rehearse.state import Difference, EndState, describe
from clusterdp.wording import some_of

NOT_KEPT = "is in no checkpoint, and starts anew after a resume"
# Keys that torch gives to the state of each part, whatever a program calls it.
_STATE_OF = {
    "optimizer": ("the optimizer", re.compile(r"param_groups|exp_avg|momentum_buffer|square_avg")),
    "scheduler": ("the scheduler", re.compile(r"last_epoch")),
    "scaler": ("the GradScaler", re.compile(r"growth_tracker")),
}


@dataclass(frozen=True)
class Kept:
    """What a checkpoint keeps. made: parts_made(). complete: their text shows all that there is."""

    state: EndState
    made: Mapping[str, Place]
    complete: bool = False


def name_the_loss(differences: Sequence[Difference], kept: Kept) -> str:
    """A part that is in no checkpoint, or else what differs; empty if nothing does."""
    best = [each for each in differences if is_best(_file(each.key))]
    rest = [each for each in differences if each not in best]
    parts = {each.part for each in rest}
    if best and parts <= {"metrics", "other"}:
        return _of_best(best[0], rest)
    lacking = [words for part in _STATE_OF if (words := _lacks(kept, part, rest))]
    return "; ".join(lacking) if lacking and parts - {"metrics", "other"} else describe(rest)


def _file(key: str) -> str:
    return key.partition(":")[0] if ":" in key else ""


def _of_best(best: Difference, rest: Sequence[Difference]) -> str:
    scores = f" and {some_of([each.key for each in rest], 2)} differ" if rest else " differs"
    return f"{_file(best.key)}{scores}, and all else is the same ({best.key} {best.what})"


def _lacks(kept: Kept, part: str, differences: Sequence[Difference]) -> str:
    """Shown by the names of all that the checkpoints hold. A scheduler is named only where a learning rate differs."""
    place = kept.made.get(part)
    name, keys = _STATE_OF[part]
    if place is None or not kept.complete or any(keys.search(key) for key in kept.state.values):
        return ""
    if any(leaf.part == part and not key.endswith("lr") for key, leaf in kept.state.values.items()):
        return ""  # kept in a form of its own
    if part == "scaler" and may_be_off(place):
        return ""
    rates = [each for each in differences if each.part == "scheduler" and each.got is not None]
    if part == "scheduler" and not rates:
        return ""
    ended = f": the learning rate ends as {rates[0].got:g}, not {rates[0].expected:g}" if part == "scheduler" else ""
    return f"{name} ({at(place)}) {NOT_KEPT}{ended}"


def may_be_off(scaler: Place) -> bool:
    """One that is told whether to scale has no state where it is told not to."""
    return re.search(r"\benabled\s*=\s*(?!True\b)", scaler.text) is not None
