"""name_the_fault(): what was not restored, told from the parts that differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterdp.rehearse.state.compare import Difference
from clusterdp.wording import some_of

# A learning rate or a count tells of the scheduler itself. What it keeps of the loss follows from the model.
_SCHEDULE = re.compile(r"(?:.*[.:_])?(?:last_epoch|_?step_count|(?:base_|_?last_|initial_)?lrs?)(?:\.\d+)?")
_UPDATES = re.compile(r".*\bstate\..*\.step")  # Adam's, of each parameter
_COUNT = re.compile(rf"{_UPDATES.pattern}|(?:.*[.:_])?last_epoch")


def name_the_fault(differences: Sequence[Difference]) -> str | None:
    """In words; None if the differences tell nothing. What follows from something else that differs is not named."""
    if differences and all(each.what == "is missing" for each in differences):
        return f"the end state lacks {some_of([each.key for each in differences], 3)}"
    if found := _steps(differences):
        return found
    if lost := _lost(differences):
        words = lost[0] if len(lost) == 1 else f"{', '.join(lost[:-1])} and {lost[-1]}"
        several = len(lost) > 1 or "numbers" in words
        return f"{words} {'were' if several else 'was'} not restored"
    parts = {each.part for each in differences}
    if parts & {"model", "optimizer"}:
        return "samples or random numbers differ: the sampler's position or the random numbers were not restored"
    if "metrics" not in parts or not parts <= {"metrics", "other"}:
        return None
    # Of a history of 80 entries each has another key: what they are of is what tells.
    names = dict.fromkeys(_name(each.key) for each in differences)
    return f"nothing but metrics differs: {some_of(list(names), 3)}"


def _name(key: str) -> str:
    """Without its place in a list: `trainer_state.json:log_history.*.num_tokens`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", key)


def _steps(differences: Sequence[Difference]) -> str | None:
    """Of the plainest of the counts: Lightning has a dozen beside its global_step."""
    for each in sorted(differences, key=lambda each: (each.part != "step", len(each.key))):
        if each.expected is None or each.got is None:
            continue
        counts = f"{each.key} is {each.got:g}, and not {each.expected:g}"
        if each.part == "step" and each.got < each.expected:
            return f"it started from the beginning, or did not end: {counts}"
        # A loop that counts anew does steps that it did before: then a count that was restored goes too far.
        if each.got > each.expected and (each.part == "step" or _COUNT.fullmatch(each.key)):
            return f"it did too many steps: {counts}"
    return None


def _lost(differences: Sequence[Difference]) -> list[str]:
    def of(part: str) -> list[Difference]:
        return [each for each in differences if each.part == part]

    scaler = bool(of("scaler"))
    found = ["the GradScaler"] if scaler else []
    for name, part, tells in (("the scheduler", "scheduler", _SCHEDULE), ("the optimizer", "optimizer", _UPDATES)):
        # Another scale skips other steps, whereupon the counts of both are a few off.
        if any(tells.fullmatch(each.key) and (_far(each) or not scaler) for each in of(part)):
            found.append(name)
    if draws := of("rng"):
        found.append(f"{_whose(draws) or 'the'} random numbers")
    if positions := of("sampler"):
        ranks = sorted({each.rank for each in positions if each.rank is not None})
        found.append("the sampler's position" + (f" of rank {ranks[0]}" if len(ranks) == 1 else ""))
    return found


def _far(each: Difference) -> bool:
    return each.expected is not None and each.got is not None and each.got < 0.75 * each.expected


def _whose(differences: Sequence[Difference]) -> str:
    """`rank 2's`, `ranks 0 and 2's`, `8 ranks'`; empty if it is not known."""
    ranks = sorted({each.rank for each in differences if each.rank is not None})
    if len(ranks) < 2:
        return f"rank {ranks[0]}'s" if ranks else ""
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}'s" if len(ranks) < 5 else f"{len(ranks)} ranks'"
