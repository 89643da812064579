"""The state that differs after a fault, and the checkpoint since which it differs.

Names the cause if the checkpoints show it: a part that started anew at the resume, or a part that is not in any
checkpoint.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from clusterdp.check.program import CodePlace, ProgramText
from clusterdp.plainfile import read_plain
from clusterdp.rehearse.judge.after_fault import AfterFault
from clusterdp.rehearse.observe.file_use import is_best, series_of
from clusterdp.rehearse.state import RESULTS, Difference, EndState, describe
from clusterdp.rehearse.state.compare import is_float, number_of
from clusterdp.rehearse.state.optimizers import optimizers_of, prefix_of
from clusterdp.wording import some_of

NOT_KEPT = "is in no checkpoint, and starts anew after a resume"
# For each part: its name in messages, and keys by which torch's state of the part is recognized.
_STATE_OF = {
    "optimizer": ("the optimizer", re.compile(r"param_groups|exp_avg|momentum_buffer|square_avg")),
    "scheduler": ("the scheduler", re.compile(r"last_epoch")),
    "scaler": ("the GradScaler", re.compile(r"growth_tracker")),
}
_NAMES = {"scheduler": "the scheduler", "sampler": "the position in the data"}
_MAKES = {
    "scaler": re.compile(r"\bGradScaler\("),
    "optimizer": re.compile(
        r"\boptim\.(?!SGD)\w+\(|\b(?:Adam|AdamW|RMSprop|Adagrad|Lion|Adafactor)\(|\bSGD\(.*momentum"
    ),
    "scheduler": re.compile(r"\blr_scheduler\.\w+\(|\bget_\w*schedul\w*\(|\b\w+LR\("),
}


@dataclass(frozen=True)
class Kept:
    """The state that a checkpoint keeps, and the parts that the program makes."""

    state: EndState
    made: Mapping[str, CodePlace]  # from parts_made()
    complete: bool = False  # whether the program's text shows all parts of the program


def name_the_loss(differences: Sequence[Difference], kept: Kept, after: AfterFault | None = None) -> str:
    """Returns the known causes, then the differences and the first checkpoint with a difference.

    Returns "" if nothing differs. `differences`: the differences of the end states.
    """
    best = [each for each in differences if is_best(_file(each.key))]
    rest = [each for each in differences if each not in best]
    if best and {each.part for each in rest} <= RESULTS:
        return _of_best(best[0], rest)
    cause = "; ".join([*restarted(after), *_lacking(kept, rest, after)])
    since = after.first.words if after and after.first else ""
    what = since if cause else _what(rest, kept, after)
    return ". ".join(filter(None, [cause, what]))


def _what(differences: Sequence[Difference], kept: Kept, after: AfterFault | None) -> str:
    """Returns words on the differences in the first checkpoint that differs. Without one, in the end state."""
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
    """Returns words on each part that the program makes, but whose state is in no file that the program keeps."""
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
    """Whether the state has values of the part, by torch's keys for them, or in another form."""
    return any(keys.search(key) or (leaf.part == part and not key.endswith("lr")) for key, leaf in state.values.items())


def _shown(part: str, state: EndState, differences: Sequence[Difference], after: AfterFault | None) -> str | None:
    """Returns more evidence that the part was not restored, as words, which may be empty. Returns None if there is no
    such evidence."""
    if part == "optimizer":
        return None if _has_twins(state) else ""
    if part == "scaler":
        return counters_behind(after)
    rates = [each for each in differences if each.part == "scheduler" and each.got is not None]
    return f": the learning rate ends as {rates[0].got:g}, not {rates[0].expected:g}" if rates else None


def _has_twins(state: EndState) -> bool:
    """Whether each tensor of a file has the same shape as another tensor of the file, which may be its momentum."""
    shapes: dict[str, Counter[tuple[int, ...]]] = {}
    for key, leaf in state.values.items():
        if leaf.kind == "tensor" and is_float(leaf.dtype) and not is_best(_file(key)):
            shapes.setdefault(_file(key), Counter())[leaf.shape] += 1
    return any(min(counts.values()) > 1 for counts in shapes.values())


class _Counter(NamedTuple):
    """A counter of an optimizer, scheduler or sampler that differs after a fault."""

    key: str
    part: str
    stood: float  # the counter's value in the checkpoint from which the run resumed
    expected: float  # the undisturbed run's value, at the first checkpoint with a difference
    got: float  # the counter's value in the first checkpoint with a difference

    @property
    def began_anew(self) -> bool:
        return self.got == self.expected - self.stood


def restarted(after: AfterFault | None) -> list[str]:
    """Returns words on each part that was saved, but counted from 0 again after the resume: each counter of the part is
    behind by the value that it had in the checkpoint from which the run resumed.
    """
    if after is None or after.first is None:
        return []
    optimizers = optimizers_of(after.first.expected.state.values)
    found: dict[str, list[_Counter]] = {}
    for each in _counters(after):
        prefix = prefix_of(each.key, optimizers)
        found.setdefault(_NAMES[each.part] if prefix is None else optimizers[prefix].words, []).append(each)
    return [
        f"{name} began anew at the resume: {of[0].key} stood at {of[0].stood:g} in {after.resumed[0].version.name}, "
        f"and is {of[0].got:g} in {after.first.save.words}, not {of[0].expected:g}"
        for name, of in found.items()
        if all(each.began_anew for each in of) and not _stood_still(after, of)
    ]


def _stood_still(after: AfterFault, counters: Sequence[_Counter]) -> bool:
    """Whether an optimizer's counters and the values beside them did not change, because all steps were skipped."""
    if after.first is None or counters[0].part != "optimizer":
        return False
    there = {key: leaf.digest for save in after.resumed for key, leaf in save.state.values.items()}
    beside = tuple({each.key.rpartition(".")[0] for each in counters})
    now = after.first.save.state.values
    return all(each.got == each.stood for each in counters) and all(
        there.get(key) == leaf.digest for key, leaf in now.items() if key.startswith(beside)
    )


def counters_behind(after: AfterFault | None) -> str | None:
    """Returns words on a counter of a restored optimizer that is behind the undisturbed run because steps were skipped.

    Returns None if there is no such counter.
    """
    for each in _counters(after) if after else ():
        if each.part == "optimizer" and each.stood <= each.got < each.expected and not each.began_anew:
            skipped = each.expected - each.got
            return f": {each.key} is {each.got:g}, not {each.expected:g}, so {skipped:g} more steps were skipped"
    return None


def _counters(after: AfterFault) -> Iterator[_Counter]:
    """Yields counters that differ in the first checkpoint with a difference, and were above 0 before the resume."""
    if after.first is None:
        return
    series = series_of(after.first.save.version.name)
    resumed = [save.state.values for save in after.resumed if series_of(save.version.name) == series]
    before = {key: leaf for values in resumed for key, leaf in values.items()}
    optimizers = optimizers_of(after.first.expected.state.values)
    for each in after.first.differences:
        leaf = before.get(each.key)
        stood = number_of(leaf) if leaf else None
        if each.expected is None or each.got is None or not stood or stood < 0 or not each.expected.is_integer():
            continue
        is_count = each.part != "scheduler" or each.key.endswith("last_epoch")  # not _step_count, which begins at 1
        if is_count and (each.part in _NAMES or prefix_of(each.key, optimizers) is not None):
            yield _Counter(each.key, each.part, stood, each.expected, each.got)


def parts_made(text: ProgramText | None) -> Mapping[str, CodePlace]:
    """Returns the first line of the program that makes each part: `optimizer` (only with a state), `scaler`,
    `scheduler`."""
    found: dict[str, CodePlace] = {}
    for place, code in _lines(text):
        for part, expression in _MAKES.items():
            if part not in found and expression.search(code):
                found[part] = place
    return found


def _lines(text: ProgramText | None) -> Iterator[tuple[CodePlace, str]]:
    for file in text.files if text else []:
        with suppress(OSError):
            for number, line in enumerate(read_plain(file).decode("utf-8", "replace").splitlines(), 1):
                yield CodePlace(file, number, line.strip()), line.partition("#")[0]


def at(place: CodePlace) -> str:
    """Returns a place in the program's text as `train.py:31`."""
    return f"{place.file.name}:{place.line}"
