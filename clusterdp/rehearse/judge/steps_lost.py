"""Steps that a run has done twice, because it was interrupted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from clusterdp.operate.run_history import RunHistory
from clusterdp.rehearse.judge.resumed_from import resumes
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse
from clusterdp.rehearse.observe.printed_steps import read_steps
from clusterdp.rundir import RunDir

NO_FILES: Mapping[str, FileUse] = {}


def steps_lost(history: RunHistory, run: RunDir, facts: Facts, files: Mapping[str, FileUse] = NO_FILES) -> int | None:
    """By its records, or by the steps that rank 0 has printed and the checkpoints that it has read; None if that does
    not tell."""
    if facts.ours:
        return history.lost
    if facts.steps is None:
        return None
    told = printed(history, run, facts)
    if counts_anew(told, facts):
        return None
    from_step = read_steps_of(history, files, facts.files)
    lost = [_again(before, after, from_step.get(name)) for (_, before), (name, after) in itertools.pairwise(told)]
    known = [each for each in lost if each is not None]
    return sum(known) if told and len(known) == len(lost) else None


def counts_anew(told: Sequence[tuple[str, Sequence[int]]], facts: Facts) -> bool:
    """Whether each attempt counts its own steps alone: the last began where the first did, and was done at fewer than
    there are."""
    if facts.steps is None or len(told) < 2:
        return False
    first, last = told[0][1], told[-1][1]
    return last[0] <= first[0] and last[-1] < facts.steps


def _again(before: Sequence[int], after: Sequence[int], saved: int | None) -> int | None:
    """saved: the step of the checkpoint that was read. A bar that is drawn now and then tells its first step late: then
    it counts, as exactly as the steps are told."""
    last, first = max(before), after[0]
    is_late = first > last + 1 if saved is None else first > saved + 1
    if not is_late:
        return max(0, last + 1 - first)
    lost = last - saved if saved is not None else 0
    apart = max((b - a for a, b in itertools.pairwise(before)), default=1)
    return lost if lost > apart else None


def read_steps_of(history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse]) -> dict[str, int]:
    """By attempt, the step of what it has read."""
    found = {}
    for each in resumes(history, files, usual):
        attempt = history.attempts[each.number - 1]
        steps = [files[path].step_at(attempt.started or 0.0) for path in each.read]
        if known := [step for step in steps if step]:
            found[attempt.name] = max(known)
    return found


def printed(history: RunHistory, run: RunDir, facts: Facts) -> list[tuple[str, list[int]]]:
    """Of each attempt that told any: its name, and its steps."""
    told = [(each.name, read_steps(run.attempt(each.name).rank_log(0), facts.counter)) for each in history.attempts]
    return [(name, steps) for name, steps in told if steps]
