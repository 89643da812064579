"""LostWork: steps that had been saved before a fault, and that the next attempt repeated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rehearse.judge.failed_drill import FailedDrill
from clusterdp.rehearse.judge.resumed_from import kinds_to_resume_from, resumes
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import FileUse, is_best, series_of
from clusterdp.rehearse.observe.printed_steps import read_steps
from clusterdp.rehearse.run_spec import AFTER_KILL_S, Hit
from clusterdp.rundir import RunDir
from clusterdp.wording import counted

# Steps of tolerance: a save in the background ends one or two steps later, and a log counts from 0 or from 1.
SLACK = 2
NO_FILES: Mapping[str, FileUse] = {}


@dataclass(frozen=True)
class LostWork:
    """Steps that had been saved before a fault, and were done again after the fault."""

    attempt: int  # the number of the attempt that repeated the steps
    saved: int  # the step of the newest checkpoint that the fault did not damage
    began: int  # the first step that the attempt printed
    file: str  # the checkpoint's file
    moment: str = ""  # the moment of a save at which the previous attempt was killed; "" if it was not killed in a save

    @property
    def steps(self) -> int:
        return self.saved - max(0, self.began - 1)

    @property
    def words(self) -> str:
        all_of_it = ", all that was saved" if self.began <= 1 else ""
        before = f"it was killed {self.moment}" if self.moment else "the fault"
        return (
            f"step {self.saved} was saved to {self.file} before {before}, and attempt {self.attempt} began at step "
            f"{self.began}: {counted(self.steps, 'saved step')} done again{all_of_it}"
        )


def lost_work(case: FailedDrill) -> LostWork | None:
    """Returns the run's largest loss of saved steps. Returns None if no loss reaches the usual number of steps between
    saves, or if steps or saves are not known."""
    told = [] if case.facts.ours else printed(case.history, case.history.run, case.facts)
    if counts_anew(told, case.facts):
        return None
    kinds = kinds_to_resume_from(case.facts.files)
    files = {path: use for path, use in case.result.files.items() if series_of(path) in kinds and not is_best(path)}
    interval = _interval(case.facts.files or files)
    numbers = {attempt.name: attempt.number for attempt in case.history.attempts}
    hits = {hit.attempt: hit for hit in case.result.hits}
    found = []
    for (name, _), (after, steps) in itertools.pairwise(told):
        hit = hits.get(name)
        saved = _saved_before(files, hit, case.result.files) if hit else {}
        if hit and saved:
            step = max(saved)
            lost = LostWork(numbers[after], step, steps[0], saved[step], hit.moment)
            if lost.steps > SLACK and lost.steps >= interval:
                found.append(lost)
    return max(found, key=lambda each: each.steps, default=None)


def _saved_before(files: Mapping[str, FileUse], hit: Hit, all_files: Mapping[str, FileUse]) -> dict[int, str]:
    """Returns, by step, a file of each save that was complete before the fault, even if the file was deleted later.

    The save that the fault interrupted or damaged is left out.
    """
    saved = {step: path for path, use in files.items() for at, step in _saves(use) if at <= hit.at and step}
    if not hit.file or hit.since is not None:
        return saved
    torn = all_files[hit.file].step_at(hit.at + AFTER_KILL_S) if hit.file in all_files else None
    limit = torn or max(saved, default=0)
    return {step: path for step, path in saved.items() if step < limit}


def _saves(use: FileUse) -> Sequence[tuple[float, int]]:
    return [*zip(sorted((*use.written, *use.named)), use.steps, strict=False)]


def _interval(files: Mapping[str, FileUse]) -> float:
    """Returns the usual number of steps between two saves. With only one save, returns the steps before it."""
    steps = sorted({0, *(step for path, use in files.items() if not is_best(path) for step in use.steps)})
    return median([b - a for a, b in itertools.pairwise(steps)] or [0])


def steps_lost(history: RunHistory, run: RunDir, facts: Facts, files: Mapping[str, FileUse] = NO_FILES) -> int | None:
    """Returns the number of lost steps, by the run's records, or by the printed steps and the checkpoints that were
    read.

    Returns None if the lost steps are not known.
    """
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
    """Whether each attempt counts only its own steps: the last attempt began at the same step as the first attempt, and
    made fewer steps than the whole run has.
    """
    if facts.steps is None or len(told) < 2:
        return False
    first, last = told[0][1], told[-1][1]
    return last[0] <= first[0] and last[-1] < facts.steps


def _again(before: Sequence[int], after: Sequence[int], saved: int | None) -> int | None:
    """Returns the number of repeated steps, or None if it is not known.

    `saved`: the step of the checkpoint that was read. This step is used if the first printed step came late, because a
    progress bar is drawn rarely; the result is then as precise as the distance of printed steps.
    """
    last, first = max(before), after[0]
    is_late = first > last + 1 if saved is None else first > saved + 1
    if not is_late:
        return max(0, last + 1 - first)
    lost = last - saved if saved is not None else 0
    apart = max((b - a for a, b in itertools.pairwise(before)), default=1)
    return lost if lost > apart else None


def read_steps_of(history: RunHistory, files: Mapping[str, FileUse], usual: Mapping[str, FileUse]) -> dict[str, int]:
    """Returns the step of the checkpoint that each attempt has read."""
    found = {}
    for each in resumes(history, files, usual):
        attempt = history.attempts[each.number - 1]
        steps = [files[path].step_at(attempt.started or 0.0) for path in each.read]
        if known := [step for step in steps if step]:
            found[attempt.name] = max(known)
    return found


def printed(history: RunHistory, run: RunDir, facts: Facts) -> list[tuple[str, list[int]]]:
    """Returns (name, printed steps) of each attempt that printed steps."""
    told = [(each.name, read_steps(run.attempt(each.name), facts.counter)) for each in history.attempts]
    return [(name, steps) for name, steps in told if steps]
