"""Counters that show by their values that a part of a program began anew at a resume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clusterdp.rehearse.judge.after_fault import AfterFault
from clusterdp.rehearse.observe.file_use import series_of
from clusterdp.rehearse.state.measure import number_of
from clusterdp.rehearse.state.optimizers import optimizers_of, prefix_of

_NAMES = {"scheduler": "the scheduler", "sampler": "the position in the data"}


class _Counter(NamedTuple):
    """stood: in the checkpoint that was resumed from. expected, got: in the first checkpoint with a difference."""

    key: str
    part: str
    stood: float
    expected: float
    got: float

    @property
    def began_anew(self) -> bool:
        return self.got == self.expected - self.stood


def restarted(after: AfterFault | None) -> list[str]:
    """Words on each part that is in the checkpoint that was resumed from, and that counted from 0 again: each of its
    counters is behind by as much as it stood at there."""
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
    """Whether an optimizer's counters are where they stood, and so is all beside them: the steps since were skipped."""
    if after.first is None or counters[0].part != "optimizer":
        return False
    there = {key: leaf.digest for save in after.resumed for key, leaf in save.state.values.items()}
    beside = tuple({each.key.rpartition(".")[0] for each in counters})
    now = after.first.save.state.values
    return all(each.got == each.stood for each in counters) and all(
        there.get(key) == leaf.digest for key, leaf in now.items() if key.startswith(beside)
    )


def counters_behind(after: AfterFault | None) -> str | None:
    """Of an optimizer that has gone on, and made fewer steps than undisturbed: some were skipped. In words; None if
    there is none."""
    for each in _counters(after) if after else ():
        if each.part == "optimizer" and each.stood <= each.got < each.expected and not each.began_anew:
            skipped = each.expected - each.got
            return f": {each.key} is {each.got:g}, not {each.expected:g}, so {skipped:g} more steps were skipped"
    return None


def is_explained(after: AfterFault) -> bool:
    return bool(restarted(after)) or counters_behind(after) is not None


def _counters(after: AfterFault) -> Iterator[_Counter]:
    """Whole numbers that differ in the first checkpoint with a difference, and stood above 0 before."""
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
        is_count = each.part != "scheduler" or each.key.endswith("last_epoch")  # its other count begins at 1
        if is_count and (each.part in _NAMES or prefix_of(each.key, optimizers) is not None):
            yield _Counter(each.key, each.part, stood, each.expected, each.got)
