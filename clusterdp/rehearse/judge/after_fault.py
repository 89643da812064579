"""AfterFault: a run after its fault, compared with the undisturbed run: the files from which the run resumed, the first
checkpoint that differs from the undisturbed run's checkpoint of the same step, and the first step at which rank 0
printed other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from clusterdp.batch.files.rank_logs import text_of
from clusterdp.errors import CheckpointError
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.rehearse.judge.reference import KnownSave, Reference, read_saves
from clusterdp.rehearse.judge.resumed_from import resumes
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.observe.file_use import series_of
from clusterdp.rehearse.observe.file_versions import files_at, read_versions
from clusterdp.rehearse.observe.printed_steps import lines_of_steps
from clusterdp.rehearse.run_spec import RunResult
from clusterdp.rehearse.state import RESULTS, Difference, compare, spread_of
from clusterdp.rehearse.state.flatten import without_volatile
from clusterdp.rundir import Attempt, RunDir
from clusterdp.wording import some_of

_DECIMAL = re.compile(r"(?P<name>[A-Za-z_]\w*)?[^\w.+-]{0,3}(?P<number>[-+]?\d+\.\d+(?:e[-+]?\d+)?)")


@dataclass(frozen=True)
class AfterFault:
    """The part of a run after its first fault."""

    attempt: int  # the number of the attempt after the first fault
    began: float  # when this attempt began, in seconds since 1970
    resumed: Sequence[KnownSave] = ()  # the files from which this attempt resumed, with their content at that time
    first: FirstDifference | None = None
    printed: PrintedDifference | None = None


@dataclass(frozen=True)
class FirstDifference:
    """The first checkpoint after a fault that differs from the undisturbed run's checkpoint of the same step."""

    save: KnownSave
    expected: KnownSave  # the checkpoint of the undisturbed run
    differences: Sequence[Difference]
    before: KnownSave | None = None  # the last checkpoint after the fault that equals the reference's
    beside: Sequence[Difference] = ()  # differences of `before` from the undisturbed run, in scores and options only

    @property
    def words(self) -> str:
        if self.before:
            but = f" but for {some_of([each.key for each in self.beside], 2)}" if self.beside else ""
            return f"{self.before.words} is the same{but}, and {self.save.words} differs"
        return f"{self.save.words}, the first checkpoint after the resume, differs already"


def after_fault(reference: Reference, run: RunDir, history: RunHistory, result: RunResult) -> AfterFault | None:
    """Returns the part of the run after its first fault, or None if no attempt came after the fault."""
    hit = result.hits[0].attempt if result.hits else ""
    at = next((i for i, each in enumerate(history.attempts) if each.name == hit), len(history.attempts))
    following = next((each for each in history.attempts[at + 1 :] if each.started is not None), None)
    if following is None or following.started is None:
        return None
    return AfterFault(
        following.number,
        following.started,
        _resumed(reference, history, result, following),
        first_difference(reference, run, following.started),
        printed_difference(reference, run.attempt(following.name)),
    )


def _resumed(
    reference: Reference, history: RunHistory, result: RunResult, attempt: AttemptHistory
) -> Sequence[KnownSave]:
    """Returns the saves that the attempt read, by the kernel's file events. Without such events, returns the newest
    save of each series."""
    found = resumes(history, result.files, reference.facts.files)
    read = next((each.read for each in found if each.number == attempt.number), ())
    there = files_at(read_versions(history.run.path), attempt.started or 0.0)
    newest = {series_of(name): name for name in sorted(there, key=lambda name: there[name].at)}
    names = read or newest.values()
    return [*read_saves([there[name] for name in names if name in there], reference.kinds)]


def first_difference(reference: Reference, run: RunDir, since: float) -> FirstDifference | None:
    """Returns the first checkpoint that differs from the undisturbed run's checkpoint of the same step, or None.

    A checkpoint that differs only in options comes last, because a program that saves just after its resume may store
    an additional option. `since`: seconds since 1970.
    """
    expected, again = _by_step(reference.saves), _by_step(reference.saves_again)
    before: KnownSave | None = None
    beside: Sequence[Difference] = ()
    first: FirstDifference | None = None
    for save in read_saves(read_versions(run.path), reference.kinds, since):
        one, other = expected.get(save.step), again.get(save.step)
        if one is None or other is None:
            continue
        with suppress(CheckpointError):  # a file that was cut while it was copied cannot be compared
            spread = spread_of(one.state, other.state)
            found = compare(one.state, save.state, spread)
            if {each.part for each in found} - RESULTS:
                return FirstDifference(save, one, found, before, beside)
            first = first or (FirstDifference(save, one, found, before) if found else None)
            before, beside = save, found
    return first


def _by_step(saves: Sequence[KnownSave]) -> Mapping[object, KnownSave]:
    """Returns the saves by step, without steps for which the run has several saves with different content."""
    alike: dict[object, list[KnownSave]] = {}
    for save in saves:
        alike.setdefault(save.step, []).append(save)
    return {
        step: same[-1]
        for step, same in alike.items()
        if all(each.state.values == same[0].state.values for each in same)
    }


@dataclass(frozen=True)
class PrintedDifference:
    """The first step at which rank 0 printed another number than rank 0 of the undisturbed run."""

    step: int
    name: str
    expected: str  # the number in the undisturbed run
    got: str
    same: int | None  # the last step after the fault with equal numbers; None if there was no such step

    @property
    def words(self) -> str:
        numbers = " ".join(filter(None, [self.name, f"{self.got} against {self.expected}"]))
        if self.same is None:
            return f"the printed numbers differ from step {self.step} on, the first after the resume ({numbers})"
        return f"the printed numbers are the same at step {self.same}, and differ from step {self.step} on ({numbers})"


def printed_difference(reference: Reference, attempt: Attempt) -> PrintedDifference | None:
    """Returns the first different number in the log of the attempt after the fault, or None.

    Only numbers that are equal in two undisturbed runs are compared.
    """
    if reference.again is None:
        return None
    facts, same = reference.facts, None
    first, again = (_numbers(RunDir(path).attempts()[:1], facts) for path in (reference.folder, reference.again))
    for step, got in _numbers([attempt], facts).items():
        numbers, others = first.get(step, []), again.get(step, [])
        if not len(numbers) == len(others) == len(got):
            continue
        pairs = [(mine, one) for one, two, mine in zip(numbers, others, got, strict=True) if one == two]
        for (name, value), (_, expected) in pairs:
            if value != expected:
                return PrintedDifference(step, name, expected, value, same)
        same = step if pairs else same
    return None


def _numbers(attempts: Sequence[Attempt], facts: Facts) -> dict[int, list[tuple[str, str]]]:
    """Returns, by step, the decimal numbers in the line of this step, each with the word before the number."""
    found: dict[int, list[tuple[str, str]]] = {}
    for attempt in attempts:
        for step, line in lines_of_steps(text_of(str(attempt.logs), 0), facts.counter):
            found[step] = [(each["name"] or "", each["number"]) for each in _decimals(line)]
    return found


def _decimals(line: str) -> Iterator[re.Match[str]]:
    return _DECIMAL.finditer(without_volatile(line))
