"""What differs after a fault, and since when; a cause where the checkpoints show one: a part that began anew at the
resume, or that is in none of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterdp.check.program import Place
from clusterdp.rehearse.judge.after_fault import AfterFault
from clusterdp.rehearse.judge.program_parts import at
from clusterdp.rehearse.judge.restarted import counters_behind, restarted
from clusterdp.rehearse.observe.file_use import is_best
from clusterdp.rehearse.state import RESULTS, Difference, EndState, describe
from clusterdp.rehearse.state.measure import is_float
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


class Shown(NamedTuple):
    """By experiments. cause: why a run ended in another state. note: what else was found out."""

    cause: str = ""
    note: str = ""


NOTHING = Shown()


def name_the_loss(
    differences: Sequence[Difference], kept: Kept, after: AfterFault | None = None, shown: Shown = NOTHING
) -> str:
    """The causes that are shown; then what differs, and since when. Empty if nothing differs. differences: of the end
    states."""
    best = [each for each in differences if is_best(_file(each.key))]
    rest = [each for each in differences if each not in best]
    if best and {each.part for each in rest} <= RESULTS:
        return _of_best(best[0], rest)
    causes = [shown.cause, *restarted(after), *_lacking(kept, rest, after)]
    cause = "; ".join(filter(None, causes))
    since = after.first.words if after and after.first else ""
    what = since if cause else _what(rest, kept, after)
    return ". ".join(filter(None, [cause, what, shown.note]))


def _what(differences: Sequence[Difference], kept: Kept, after: AfterFault | None) -> str:
    """In the first checkpoint that is other, or else at the end."""
    first = after.first if after else None
    if first:
        said = f"{first.words}: {describe(first.differences, first.expected.state.values)}"
    else:
        said = describe(differences, kept.state.values)
    printed = after.printed.words if after and after.printed else ""
    return "; ".join(filter(None, [said, printed])) if said else ""


def _file(key: str) -> str:
    return key.partition(":")[0] if ":" in key else ""


def _of_best(best: Difference, rest: Sequence[Difference]) -> str:
    scores = f" and {some_of([each.key for each in rest], 2)} differ" if rest else " differs"
    return f"{_file(best.key)}{scores}, and all else is the same ({best.key} {best.what})"


def _lacking(kept: Kept, differences: Sequence[Difference], after: AfterFault | None) -> list[str]:
    """Parts that the program makes, and that have no state in any file that it keeps."""
    if not kept.complete or not {each.part for each in differences} - RESULTS:
        return []
    found = []
    for part, (name, keys) in _STATE_OF.items():
        place = kept.made.get(part)
        if place is None or _is_kept(kept.state, part, keys):
            continue
        shown = _shown(part, kept.state, differences, after)
        if shown is not None:
            found.append(f"{name} ({at(place)}) {NOT_KEPT}{shown}")
    return found


def _is_kept(state: EndState, part: str, keys: re.Pattern[str]) -> bool:
    """By the names that torch gives to its values, or in a form of its own."""
    return any(keys.search(key) or (leaf.part == part and not key.endswith("lr")) for key, leaf in state.values.items())


def _shown(part: str, state: EndState, differences: Sequence[Difference], after: AfterFault | None) -> str | None:
    """What shows, besides, that the part began anew, in words that may be empty; None if nothing shows it."""
    if part == "optimizer":
        return None if _has_twins(state) else ""
    if part == "scaler":
        return counters_behind(after)
    rates = [each for each in differences if each.part == "scheduler" and each.got is not None]
    return f": the learning rate ends as {rates[0].got:g}, not {rates[0].expected:g}" if rates else None


def _has_twins(state: EndState) -> bool:
    """Whether each tensor of a file has another one of its shape there: that may be its momentum."""
    shapes: dict[str, Counter[tuple[int, ...]]] = {}
    for key, leaf in state.values.items():
        if leaf.kind == "tensor" and is_float(leaf.dtype) and not is_best(_file(key)):
            shapes.setdefault(_file(key), Counter())[leaf.shape] += 1
    return any(min(counts.values()) > 1 for counts in shapes.values())
