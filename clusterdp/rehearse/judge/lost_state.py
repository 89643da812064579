"""Which part of its state a job has lost, by what differs, by what its checkpoints keep, and by its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.check.program import Place
from clusterdp.rehearse.judge.program_parts import at
from clusterdp.rehearse.observe.file_use import is_best
from clusterdp.rehearse.state import Difference, EndState, name_the_fault
from clusterdp.wording import some_of

POSITION = "the position in the data is in no checkpoint, and the sampler starts over after a resume"
NOT_KEPT = "is in no checkpoint, and starts anew after a resume"
TORCH_RNG = (5056,)  # the shape of torch.get_rng_state()


@dataclass(frozen=True)
class Kept:
    """What a checkpoint keeps. ranks: of the job. made: parts_made(). complete: their text shows all that there is."""

    state: EndState
    ranks: int
    made: Mapping[str, Place]
    complete: bool = False

    def may(self, part: str) -> bool:
        """Whether the program makes this part, for all that its text shows. A program whose own text draws random
        numbers, and makes no sampler, draws its samples, whatever its libraries could do."""
        return part in self.made or not (self.complete or (part == "samples" and "draws" in self.made))

    def has(self, part: str) -> bool:
        """A learning rate is the optimizer's own: it tells of no scheduler that is kept."""
        return any(leaf.part == part and not key.endswith("lr") for key, leaf in self.state.values.items())

    @property
    def generators(self) -> int:
        """Of torch on CPUs, of which each rank has one."""
        return sum(leaf.part == "rng" and leaf.shape == TORCH_RNG for leaf in self.state.values.values())


def name_the_loss(differences: Sequence[Difference], kept: Kept) -> str:
    """Empty if nothing can be said."""
    best = [each for each in differences if is_best(_file(each.key))]
    rest = [each for each in differences if each not in best]
    parts = {each.part for each in rest}
    if best and parts <= {"metrics", "other"}:
        return _of_best(best[0], rest)
    said = name_the_fault(rest) or ""
    if "step" in parts or not parts & {"model", "optimizer", "scheduler", "scaler", "rng", "sampler"}:
        return said
    rates = [each for each in rest if each.part == "scheduler"]
    lacking = [words for part in ("optimizer", "scheduler", "scaler") if (words := _lacks(kept, part, rates))]
    perhaps = _perhaps_lacks(kept)
    if lacking:
        return "; ".join(lacking)
    found = said if parts & {"scaler", "scheduler", "sampler"} else _of_draws(rest, kept, said)
    return "; or ".join(filter(None, [found, perhaps]))


def is_lacking(said: str) -> bool:
    """Whether it is sure: a part that the program makes, and that is in none of its checkpoints."""
    return NOT_KEPT in said and "; or " not in said


def _file(key: str) -> str:
    return key.partition(":")[0] if ":" in key else ""


def _of_best(best: Difference, rest: Sequence[Difference]) -> str:
    scores = f", as is its score ({some_of([each.key for each in rest], 2)})" if rest else ""
    return (
        f"the best model ({_file(best.key)}) is another{scores}, and all else is the same: a resume does not restore"
        " the best score so far, and the next model overwrites the best one"
    )


def _lacks(kept: Kept, part: str, rates: Sequence[Difference]) -> str:
    place = kept.made.get(part)
    if place is None or kept.has(part):
        return ""
    if part == "optimizer":
        return f"the optimizer ({at(place)}) {NOT_KEPT}"
    if part == "scheduler":
        if not rates:
            return ""
        each = rates[0]
        ended = f": the learning rate ends as {each.got:g}, not {each.expected:g}" if each.got is not None else ""
        return f"the scheduler ({at(place)}) {NOT_KEPT}{ended}"
    return "" if may_be_off(place) else f"the GradScaler ({at(place)}) {NOT_KEPT}"


def _perhaps_lacks(kept: Kept) -> str:
    place = kept.made.get("scaler")
    if place is None or kept.has("scaler") or not may_be_off(place):
        return ""
    return f"the GradScaler ({at(place)}), if it was enabled, {NOT_KEPT}"


def may_be_off(scaler: Place) -> bool:
    """One that is told whether to scale has no state where it is told not to."""
    return re.search(r"\benabled\s*=\s*(?!True\b)", scaler.text) is not None


def _of_draws(differences: Sequence[Difference], kept: Kept, said: str) -> str:
    """The model differs, and perhaps the random numbers, but nothing that its checkpoints count. said: if nothing is
    found."""
    draws = [each.key for each in differences if each.part == "rng"]
    restores = kept.made.get("restores-rng")
    one_alone = draws and any(
        leaf.part == "rng" and leaf.shape == TORCH_RNG and key not in draws for key, leaf in kept.state.values.items()
    )  # another sample would change the draws of all ranks alike
    position = "" if one_alone or kept.has("sampler") or not kept.may("samples") else POSITION
    if draws:
        which = f"the state of the random numbers ({some_of(draws, 3)}) was not restored"
        return which if restores is None or not position else f"{which}, though {at(restores)} does so; or {position}"
    random = ""
    if not kept.has("rng") and kept.may("draws"):
        random = "the random numbers' state is in no checkpoint"
    elif 0 < kept.generators < kept.ranks:
        random = f"the random numbers' state of {kept.generators} of {kept.ranks} ranks alone is in the checkpoints"
    return "; or ".join(filter(None, [random, position])) or said
