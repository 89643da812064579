"""judge(): the verdict on a drill, from the files and records that its run has left."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from clusterdp.check.program import ProgramText
from clusterdp.config import Config
from clusterdp.errors import CheckpointError
from clusterdp.operate.record.ending import not_repeated
from clusterdp.operate.record.run_history import RunHistory, read_history
from clusterdp.operate.why.first_failure import find_failure
from clusterdp.rehearse.drills.losses import CRASHES
from clusterdp.rehearse.drills.table import Drill
from clusterdp.rehearse.judge.after_fault import after_fault
from clusterdp.rehearse.judge.compared import compared_with
from clusterdp.rehearse.judge.diagnosis import begun_anew, diagnose
from clusterdp.rehearse.judge.failed_drill import FailedDrill
from clusterdp.rehearse.judge.lost_state import Kept, parts_made
from clusterdp.rehearse.judge.lost_work import lost_work, printed, steps_lost
from clusterdp.rehearse.judge.reference import Reference
from clusterdp.rehearse.judge.resumed_from import resumes
from clusterdp.rehearse.judge.signal_faults import unsaved
from clusterdp.rehearse.judge.verdict import (
    FAILED,
    INAPPLICABLE,
    LOST_WORK,
    NOT_LANDED,
    PASSED,
    AttemptRow,
    HitRow,
    Verdict,
    rows_of,
)
from clusterdp.rehearse.observe.facts import Facts
from clusterdp.rehearse.run_spec import DISK, MEMORY, TOO_LONG, Hit, RunResult
from clusterdp.rehearse.state import Difference, compare
from clusterdp.rundir import RunDir, read_events
from clusterdp.wording import counted, some_of

# Of the norm of a tensor, on other numbers of ranks, whose sums are rounded otherwise. After 200 steps, losses were at
# most 5e-4 apart; where samples had other weights, 0.1 and more.
ROUNDING = 1e-3
ROUNDED = ("model", "optimizer", "metrics", "other")
ROUNDED_ANYWAY = ("metrics", "other")  # with train.exact: any_ranks: sums of an evaluation that the ranks share
OF_RANKS = ("rng", "sampler")
SHOWN = 5  # maximum number of differences that a verdict shows
EARLY = 0.8  # part of the whole run's time; an attempt that exits with 0 before was not done


def attempts_of(result: RunResult, history: RunHistory, facts: Facts) -> tuple[AttemptRow, ...]:
    is_silent = not facts.ours and facts.steps is None
    return rows_of(history, dict(printed(history, history.run, facts)), result.first_steps, is_silent)


def why_missed(result: RunResult, history: RunHistory) -> str:
    """Returns why there is no proof that the fault happened, or "" if there is proof."""
    if result.missed or not result.hits:
        return result.missed or "nothing was done to it"
    causes = {attempt.name: attempt.cause for attempt in history.attempts}
    for hit in result.hits:
        cause = causes.get(hit.attempt, "")
        if hit.causes and cause not in hit.causes and not _stopped_early(result, history, hit):
            return f"{hit.evidence}, and attempt {hit.attempt} is on record as {cause or 'without an end'}"
    return ""


def _stopped_early(result: RunResult, history: RunHistory, hit: Hit) -> bool:
    """Whether the attempt was warned, and then exited with 0 before its work was done."""
    attempt = next((each for each in history.attempts if each.name == hit.attempt), None)
    if attempt is None or attempt.cause != "done" or not hit.grace_s:
        return False
    if result.facts.steps:
        steps = _last_steps(history, result.facts).get(hit.attempt, result.facts.steps)
        return steps < result.facts.steps
    return (attempt.ended or hit.at) - (attempt.started or 0) < EARLY * result.facts.took_s


def judge(
    drill: Drill,
    result: RunResult,
    folder: Path,
    reference: Reference,
    config: Config,
) -> Verdict:
    """Returns the verdict on a drill."""
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
        "attempts": attempts_of(result, history, reference.facts),
        "settings": drill.config if reference.facts.ours else (),
        "lost": lost,
        "took_s": result.took_s,
        "folder": str(folder),
    }
    missed = why_missed(result, history)
    if missed:
        return Verdict(verdict=NOT_LANDED, said=f"the fault did not land: {missed}", **told)  # type: ignore[arg-type]
    kept = Kept(reference.all_kept(), parts_made(reference.text), _is_whole(reference.text))
    last_steps = _last_steps(history, reference.facts)
    case = FailedDrill(
        drill.name,
        result,
        history,
        reference.facts,
        lost,
        requeue=config.restart.requeue,
        text=reference.text,
        kept=kept,
        last_steps=last_steps,
    )
    if result.state == TOO_LONG:
        said = f"undecided: {result.why}, when the rehearsal ended it; the job, or this machine, is too slow"
        return Verdict(verdict=NOT_LANDED, said=said, **told)  # type: ignore[arg-type]
    if result.state != "done":
        why = f": {result.why}" if result.why else ""
        said = f"the job did not come back: {result.state}{why}"
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnose(case), **told)  # type: ignore[arg-type]
    if elsewhere := _resumed_elsewhere(result, history) or _queued_again(result, history):
        return Verdict(verdict=FAILED, said=elsewhere, **told)  # type: ignore[arg-type]
    is_rounded = drill.other_size and config.train.exact != "any_ranks"
    differences, unread = _differences(reference, run, drill, ROUNDED if is_rounded else ROUNDED_ANYWAY)
    witness = [words for _, words in not_repeated(history.attempts)]
    if unread or differences or (drill.other_size and witness):
        said = (
            unread
            or "its steps are not those of the other number of nodes" * (not differences)
            or f"it ended in another state: {differ(len(differences))}{_beyond(reference, differences)}"
        )
        firsts = tuple(f"{each.key} {each.what}" for each in differences[:SHOWN])
        after = after_fault(reference, run, history, result)
        found = diagnose(replace(case, after=after), differences)
        evidence = [*witness, _forgotten(run), found]
        diagnosis = ". Besides, ".join(each.rstrip(".") for each in evidence if each)
        told |= {"differences": firsts, "differing": len(differences)}
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnosis, **told)  # type: ignore[arg-type]
    compared = compared_with(reference, run, result.hits[0].at)
    equal = "equal but for rounding" if is_rounded else reference.equal
    told |= {"state": equal, "compared": tuple(compared.what), "left_out": compared.left_out_words}
    if (work := lost_work(case)) and work.steps > config.rehearse.may_lose:
        return Verdict(verdict=LOST_WORK, said=work.words, diagnosis=diagnose(case), **told)  # type: ignore[arg-type]
    if not reference.facts.ours and (said := unsaved(case, config.rehearse.may_lose)):
        return Verdict(verdict=FAILED, said=said, diagnosis=diagnose(case), **told)  # type: ignore[arg-type]
    if anew := begun_anew(case):  # under short time limits, such a job would never end
        said = f"the same end state, but all was done again: {anew}"
        return Verdict(verdict=LOST_WORK, said=said, diagnosis=anew, **told)  # type: ignore[arg-type]
    other = compared.other + witness
    beside = f"; beside the end state, {some_of(other, 3)}" if other else ""
    said = f"{_passed(history, result, lost, reference, equal)}{beside}"
    return Verdict(verdict=PASSED, said=said, **told)  # type: ignore[arg-type]


def _resumed_elsewhere(result: RunResult, history: RunHistory) -> str:
    """Returns how an attempt resumed from another place than the drill demands; "" if none did."""
    events = {event.get("attempt"): event for event in read_events(history.run) if event.get("event") == "restored"}
    for before, after in itertools.pairwise(history.attempts):
        wanted = next((hit.resumes for hit in result.hits if hit.attempt == before.name), "")
        event = events.get(after.name)
        found = "" if event is None else MEMORY if event.get("memory") else DISK
        if wanted and found != wanted:
            return f"attempt {after.number} resumed from {found or 'nothing'}, and not from {wanted}"
    return ""


def _queued_again(result: RunResult, history: RunHistory) -> str:
    """Returns how an attempt came back through the queue, although the drill demands a restart in place."""
    names = [each.name for each in history.attempts]
    for hit in result.hits:
        after = names[names.index(hit.attempt) + 1 :] if hit.in_place and hit.attempt in names else []
        allocation = ".".join(hit.attempt.split(".")[:2]) + "."
        if again := next((name for name in after if not name.startswith(allocation)), ""):
            return f"attempt {names.index(again) + 1} came back through the queue, although the job had nodes left"
    return ""


def _forgotten(run: RunDir) -> str:
    """Returns words on what changes and is not in the state of the loop, as the attempts have named it."""
    names = dict.fromkeys(str(event.get("name")) for event in read_events(run) if event.get("event") == "forgotten")
    return f"not in the state of the loop, and begun anew at a resume: {some_of(list(names), 4)}" if names else ""


def _is_whole(text: ProgramText | None) -> bool:
    """Whether the program's text shows all that it does: its only libraries are torch, numpy and Python's own."""
    return text is not None and text.complete and text.libraries <= {"torch", "numpy", *sys.stdlib_module_names}


def _last_steps(history: RunHistory, facts: Facts) -> dict[str, int]:
    """Returns the last step that rank 0 printed, by attempt."""
    return {name: steps[-1] for name, steps in printed(history, history.run, facts)}


def _passed(history: RunHistory, result: RunResult, lost: int | None, reference: Reference, equal: str) -> str:
    hit = {each.attempt for each in result.hits}
    failed = [each for each in history.attempts if each.cause in CRASHES and each.name not in hit]
    again = len(history.ran) - 1 - len(failed)
    back = f"back after {counted(again, 'interruption')}" if again else "it went on"
    cost = "" if lost is None else f", {counted(lost, 'step')} lost" if lost else ", nothing lost"
    read = resumes(history, result.files, reference.facts.files)
    if reference.facts.files and not reference.facts.ours and read and not any(each.read for each in read):
        cost += ", no checkpoint was read"
    also = ""
    if failed:  # an attempt without a fault failed: perhaps each first resume fails, and costs an attempt
        error = find_failure(history._replace(attempts=history.attempts[: failed[-1].number])).error
        also = f"; attempt {failed[-1].number} failed by itself{f': {error}' if error else ''}"
    unmade = f"; {result.unmade}" if result.unmade else ""
    return f"{back}{cost}, {equal}{unmade}{also}"


def _differences(
    reference: Reference, run: RunDir, drill: Drill, rounded: Collection[str]
) -> tuple[list[Difference], str]:
    """Returns the differences from the undisturbed end state, or why the run's end state cannot be compared. Of a run
    on several numbers of nodes, those beyond rounding: random numbers and the place in the data are its last ranks'.
    rounded: the parts of the state in which it may round otherwise."""
    try:
        got = reference.state_of(run)
        if got is None:
            wanted = some_of(list(reference.patterns), 3) or "no good checkpoint"
            return [], f"it ended without its end state: {wanted}"
        found = compare(reference.state, got, reference.spread, reference.runs)
        if drill.other_size:
            found = [each for each in found if each.part not in OF_RANKS]
            found = [each for each in found if each.part not in rounded or each.size > ROUNDING]
        return found, ""
    except CheckpointError as error:
        return [], f"its end state cannot be read: {error}"


def _beyond(reference: Reference, differences: list[Difference]) -> str:
    """Returns words on the largest difference and the usual spread, for a program that is not deterministic."""
    if reference.spread is None or not differences:
        return ""
    each = max(differences, key=lambda each: each.size)
    if each.size == float("inf"):
        return ""  # infinity: the difference cannot be measured
    usual = reference.spread.get(each.key, 0.0)
    runs = f"the spread of {reference.runs} undisturbed runs is {usual:.2g}"
    return f"; not deterministic: {each.key} differs by {each.size:.2g} of its norm, {runs}"


def differ(values: int) -> str:
    """Returns a number of values in words such as `3 values differ`."""
    return f"{counted(values, 'value')} {'differs' if values == 1 else 'differ'}"


def _number(history: RunHistory, hit: Hit) -> int:
    return next((attempt.number for attempt in history.attempts if attempt.name == hit.attempt), 0)
