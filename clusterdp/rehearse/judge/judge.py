"""From what a run has left to the verdict on its drill."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterdp.check.program import ProgramText
from clusterdp.config import Config
from clusterdp.errors import CheckpointError
from clusterdp.operate.run_history import RunHistory, read_history
from clusterdp.rehearse.drills.table import Drill
from clusterdp.rehearse.judge.attempt_rows import rows_of
from clusterdp.rehearse.judge.case import Case
from clusterdp.rehearse.judge.diagnosis import begun_anew, diagnose
from clusterdp.rehearse.judge.lost_state import Kept
from clusterdp.rehearse.judge.program_parts import parts_made
from clusterdp.rehearse.judge.signal_faults import unsaved
from clusterdp.rehearse.judge.steps_lost import printed, steps_lost
from clusterdp.rehearse.judge.verdict import BIT_FOR_BIT, FAILED, INAPPLICABLE, PASSED, WITHIN_SPREAD, HitRow, Verdict
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.run_spec import Hit, RunResult
from clusterdp.rehearse.state import Difference, EndState, compare, of_files, of_run
from clusterdp.rundir import RunDir
from clusterdp.wording import counted, some_of

SHOWN = 5  # differences
EARLY = 0.8  # of the time that the whole run takes


@dataclass
class Reference:
    """The undisturbed run. patterns: the files of the end state, where the checkpoints are not ours. spread: None if a
    second one ended in the same bits. text: the program's, where it is found. began: in seconds since 1970."""

    folder: Path
    facts: Facts
    state: EndState
    patterns: tuple[str, ...] = ()
    spread: Mapping[str, float] | None = None
    text: ProgramText | None = None
    began: float = 0.0

    def state_of(self, run: RunDir) -> EndState | None:
        """CheckpointError where it cannot be read."""
        return end_state(run, self.patterns)

    @property
    def equal(self) -> str:
        return BIT_FOR_BIT if self.spread is None else WITHIN_SPREAD


def end_state(run: RunDir, patterns: tuple[str, ...]) -> EndState | None:
    if not patterns:
        return of_run(run)
    found = of_files(run.code, patterns, run)
    return found if found.values else None


def why_missed(result: RunResult, history: RunHistory) -> str:
    """Why the fault is not proved to have landed; empty if it is."""
    if result.missed or not result.hits:
        return result.missed or "nothing was done to it"
    causes = {attempt.name: attempt.cause for attempt in history.attempts}
    for hit in result.hits:
        cause = causes.get(hit.attempt, "")
        if hit.causes and cause not in hit.causes and not _stopped_early(result, history, hit):
            return f"{hit.evidence}, and attempt {hit.attempt} is on record as {cause or 'without an end'}"
    return ""


def _stopped_early(result: RunResult, history: RunHistory, hit: Hit) -> bool:
    """It was warned, and ended with 0 before its work was done."""
    attempt = next((each for each in history.attempts if each.name == hit.attempt), None)
    if attempt is None or attempt.cause != "done" or not hit.grace_s:
        return False
    if result.facts.steps:
        steps = _last_steps(history, result.facts).get(hit.attempt, result.facts.steps)
        return steps < result.facts.steps
    return (attempt.ended or hit.at) - (attempt.started or 0) < EARLY * result.facts.took_s


def judge(drill: Drill, result: RunResult, folder: Path, reference: Reference, config: Config, ranks: int) -> Verdict:
    """ranks: of the job."""
    run = RunDir(folder)
    if result.inapplicable:
        return Verdict(drill.name, drill.about, INAPPLICABLE, result.inapplicable, folder=str(folder))
    history = read_history(run)
    lost = steps_lost(history, run, reference.facts, result.files)
    told = {
        "drill": drill.name,
        "about": drill.about,
        "evidence": tuple(f"attempt {_number(history, hit)}: {hit.evidence}" for hit in result.hits),
        "hits": tuple(HitRow(hit.attempt, hit.at, hit.step) for hit in result.hits),
        "attempts": rows_of(history),
        "settings": drill.config if reference.facts.ours else (),
        "lost": lost,
        "took_s": result.took_s,
        "folder": str(folder),
    }
    if missed := why_missed(result, history):
        return Verdict(verdict=FAILED, said=f"the fault did not land: {missed}", **told)  # type: ignore[arg-type]
    kept = Kept(reference.state, ranks, parts_made(reference.text), _is_whole(reference.text))
    last_steps = _last_steps(history, reference.facts)
    case = Case(
        drill.name, result, history, reference.facts, lost, config.restart.requeue, reference.text, kept, last_steps
    )
    if result.state != "done":
        why = f": {result.why}" if result.why else ""
        said = f"the job did not come back: {result.state}{why}"
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnose(case), **told)  # type: ignore[arg-type]
    differences, unread = _differences(reference, run)
    if unread or differences:
        said = unread or f"it ended in another state: {differ(len(differences))}"
        shown = tuple(f"{each.key} {each.what}" for each in differences[:SHOWN])
        diagnosis = diagnose(case, differences)
        told |= {"differences": shown, "differing": len(differences)}
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnosis, **told)  # type: ignore[arg-type]
    told["state"] = reference.equal
    if not reference.facts.ours and (said := unsaved(case, config.rehearse.may_lose)):
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnose(case), **told)  # type: ignore[arg-type]
    if anew := begun_anew(case):  # out of time it would never come to its end
        said = f"the same end state, but all was done again: {anew}"
        return Verdict(verdict=FAILED, said=said, diagnosis=anew, **told)  # type: ignore[arg-type]
    return Verdict(verdict=PASSED, said=_passed(history, lost, reference), **told)  # type: ignore[arg-type]


def _is_whole(text: ProgramText | None) -> bool:
    """Whether all that the program does can be seen in its text: a model of a library may draw random numbers."""
    return text is not None and text.complete and text.libraries <= {"torch", "numpy", *sys.stdlib_module_names}


def _last_steps(history: RunHistory, facts: Facts) -> dict[str, int]:
    """By attempt, as rank 0 has printed them."""
    return {name: steps[-1] for name, steps in printed(history, history.run, facts)}


def _passed(history: RunHistory, lost: int | None, reference: Reference) -> str:
    again = len(history.ran) - 1
    back = f"back after {counted(again, 'interruption')}" if again else "it went on"
    cost = "" if lost is None else f", {counted(lost, 'step')} lost" if lost else ", nothing lost"
    return f"{back}{cost}, {reference.equal}"


def _differences(reference: Reference, run: RunDir) -> tuple[list[Difference], str]:
    """Where the end state differs, or why it cannot be compared."""
    try:
        got = reference.state_of(run)
        if got is None:
            wanted = some_of(list(reference.patterns), 3) or "no good checkpoint"
            return [], f"it ended without its end state: {wanted}"
        return compare(reference.state, got, reference.spread), ""
    except CheckpointError as error:
        return [], f"its end state cannot be read: {error}"


def differ(values: int) -> str:
    """`3 values differ`."""
    return f"{counted(values, 'value')} {'differs' if values == 1 else 'differ'}"


def _number(history: RunHistory, hit: Hit) -> int:
    return next((attempt.number for attempt in history.attempts if attempt.name == hit.attempt), 0)
