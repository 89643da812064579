"""The diagnosis: the fault of a job that has failed a drill, in words.

Evidence from the kernel's events and the run's files comes first, then lines of the program's text that fit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from clusterdp.batch.files.rank_logs import log_files, ranks_in
from clusterdp.check.program import CodePlace
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.why.first_failure import find_failure
from clusterdp.rehearse.judge.failed_drill import FailedDrill
from clusterdp.rehearse.judge.lost_state import NOT_KEPT, at, name_the_loss
from clusterdp.rehearse.judge.lost_work import SLACK, counts_anew, lost_work, printed, read_steps_of
from clusterdp.rehearse.judge.resumed_from import Resume, resumes, unread_save
from clusterdp.rehearse.judge.signal_faults import of_signal, outlived
from clusterdp.rehearse.observe.file_use import is_checkpoint, series_of
from clusterdp.rehearse.observe.printed_steps import read_steps
from clusterdp.rehearse.run_spec import Hit
from clusterdp.rehearse.state import Difference
from clusterdp.wording import some_of

TORN = re.compile(
    r"(?i)PytorchStreamReader|central directory|not a zip|unexpected EOF|ran out of input|pickle data was truncated|"
    r"invalid header|HeaderTooSmall|MetadataIncompleteBuffer|incomplete metadata|JSONDecodeError|truncated|corrupt"
)
PORT = re.compile(r"(?i)EADDRINUSE|address already in use")


def diagnose(case: FailedDrill, differences: Sequence[Difference] = ()) -> str:
    """Returns the diagnosis, or "" if only the failure itself is known."""
    not_back = _of_port(case) or _of_requeue(case) or _of_ranks(case) or _of_torn(case)
    if not_back:
        return not_back
    if case.result.state != "done":
        failed = _of_strike(case) or _of_later(case)
        also = of_signal(case)
        error = _of_error(case)
        if case.result.why and "exit code 75" in error:  # only asks for a requeue
            error = case.result.why
        return f"{failed}. Besides, {also}" if failed and also else failed or also or error
    lost = name_the_loss(differences, case.kept, case.after) if case.kept else ""
    if work := lost_work(case):  # a checkpoint was saved but not used: the handlers are not the cause
        return ". Besides, ".join(filter(None, [work.words, _of_resume(case), lost]))
    causes = (_of_resume, of_signal)
    if outlived(case):  # a kill before the job had saved explains the older checkpoint from which the job resumed
        causes = (of_signal, _of_resume)
    also = causes[0](case) or causes[1](case)
    first, second = (count, lost) if (count := _of_count(case)) and NOT_KEPT not in lost else (lost, count)
    found = [words for words in (first, second, also) if words]
    return ". Besides, ".join(filter(None, [found[0], "; ".join(found[1:])])) if found else ""


def _of_requeue(case: FailedDrill) -> str:
    """Returns words if the last attempt ended in order, but the job was not requeued."""
    last = case.history.last
    hit = next((hit for hit in reversed(case.result.hits) if last and hit.attempt == last.name and hit.causes), None)
    if hit is None or last is None:
        return ""
    step = case.last_steps.get(last.name)
    where = f" at step {step} of {case.facts.steps}" if step and case.facts.steps else ""
    if last.cause == "done" and (case.result.state != "done" or _is_early(case, step)):
        asks = "; exit code 75 asks for a requeue"
        return f"it was told to stop, exited with 0{where}, and was not brought back: 0 means that it is done{asks}"
    if last.cause in hit.causes and last.failed and not case.requeue:
        return f"it stopped{where} and was not brought back: restart.requeue is false"
    return ""


def _of_ranks(case: FailedDrill) -> str:
    """Returns words if the ranks of an attempt after a fault began at different steps, unlike in the first attempt."""
    for number, attempt in enumerate(case.history.attempts, 1):
        first = _first_steps(case, attempt.name)
        begun = sorted(set(first.values()))
        if number == 1 and len(begun) > 1:
            return ""  # in this program, each rank counts in its own way
        if len(begun) > 1:
            ranks = {step: next(rank for rank in first if first[rank] == step) for step in begun}
            places = " and ".join(f"at step {step} on rank {rank}" for step, rank in ranks.items())
            return f"attempt {number} began {places}: its ranks went on from different checkpoints"
    return ""


def _began_anew(case: FailedDrill, number: int) -> bool:
    """Whether the attempt's printed steps begin as in the first attempt, because the kernel may not have reported all
    reads."""
    names = {each.number: each.name for each in case.history.attempts}
    first, here = (min(_first_steps(case, names[each]).values(), default=0) for each in (min(names), number))
    return here <= first + SLACK


def _first_steps(case: FailedDrill, name: str) -> dict[int, int]:
    """Returns the first step that each rank printed in this attempt."""
    attempt = case.history.run.attempt(name)
    ranks = {rank for file in log_files(str(attempt.logs)) for rank in ranks_in(file)}
    steps = {rank: read_steps(attempt, case.facts.counter, rank) for rank in sorted(ranks)}
    return {rank: told[0] for rank, told in steps.items() if told}


def _is_early(case: FailedDrill, step: int | None) -> bool:
    return step is not None and case.facts.steps is not None and step < case.facts.steps


def _of_torn(case: FailedDrill) -> str:
    """Returns words if the job resumed from a half written or damaged file, and died of this file."""
    hit = case.result.hits[-1] if case.result.hits else None
    if hit is None or not hit.file or case.result.state == "done":
        return ""
    by = [
        f"attempt {each.number}"
        for each in resumes(case.history, case.result.files, case.facts.files)
        if hit.file in each.read
    ]
    folder = str(PurePath(hit.file).parent)  # the folder of a checkpoint that has several files
    is_state = is_checkpoint(hit.file) or case.facts.saves.is_state(f"code/{hit.file}")
    is_of_folder = is_state and folder != "." and f"{folder}/" in _error(case)
    if not by and not is_state:  # the file is not a checkpoint, but for example a README
        return ""
    if not by and not is_of_folder and not TORN.search(_error(case)):
        return ""
    read = f"{by[0]} resumed from {hit.file}" if by else f"it resumed from what it found, {hit.file} among it"
    error = f" ({error})" if (error := _of_error(case)) else ""
    if case.drill == "checkpoint-damaged":
        return f"{read}, which was damaged, and not from the one before it{error}"
    if _is_in_place(case, hit.file):
        line = _place(case.text.saves_in_place if case.text else [])
        return f"checkpoints are saved in place{line}: {read}, which was half written{error}"
    return f"it resumes from a file that is half written: {read}, the newest file, but no whole checkpoint{error}"


def _is_in_place(case: FailedDrill, path: str) -> bool:
    """Whether the undisturbed run writes this file in place. The drill's own run does not show this, because a killed
    writer never renames its file."""
    return any(use.in_place for each, use in case.facts.files.items() if series_of(each) == series_of(path))


def _of_resume(case: FailedDrill) -> str:
    for each in resumes(case.history, case.result.files, case.facts.files):
        if not each.newer:
            continue
        if not each.read and _began_anew(case, each.number):
            return f"attempt {each.number} has read no checkpoint, though {each.newer} was there: it began anew"
        if not each.read:
            continue
        read = some_of(each.read, 3)
        return f"attempt {each.number} resumed from {read}, though {each.newer} was there and newer"
    return next(filter(None, (_of_unread(case, hit) for hit in case.result.hits if hit.grace_s)), "")


def _of_unread(case: FailedDrill, hit: Hit) -> str:
    found = unread_save(case.history, case.result.files, case.facts.files, hit) if case.lost else None
    if found is None:
        return ""
    path, after = found
    read = some_of(after.read, 3)
    return f"{path} was saved after the warning, but attempt {after.number} resumed from {read}, which is older"


def begun_anew(case: FailedDrill) -> str:
    """Returns words if an attempt read no checkpoint, though a whole one existed, and began at the first step again."""
    torn = {hit.file for hit in case.result.hits}
    for each, step in _from_the_beginning(case):
        if not each.read and each.newer and each.newer not in torn:
            return f"attempt {each.number} began at step {step} again, though {each.newer} was there"
    return ""


def _of_count(case: FailedDrill) -> str:
    """Returns words if an attempt read a checkpoint, but repeats steps that this checkpoint contains."""
    saved = read_steps_of(case.history, case.result.files, case.facts.files)
    for each, steps, first in _began(case):
        of = saved.get(case.history.attempts[each.number - 1].name)
        if each.read and steps[0] <= first:
            return f"attempt {each.number} resumed from {some_of(each.read, 3)}, and began at step {steps[0]} again"
        if each.read and of and steps[0] < of:
            read = f"{some_of(each.read, 3)}, saved at step {of}"
            return f"attempt {each.number} resumed from {read}, and began at step {steps[0]}: steps were done twice"
    return ""


def _from_the_beginning(case: FailedDrill) -> Iterator[tuple[Resume, int]]:
    """Yields each attempt that began again at the first attempt's first step, with this step."""
    yield from ((each, steps[0]) for each, steps, first in _began(case) if steps[0] <= first)


def _began(case: FailedDrill) -> Iterator[tuple[Resume, Sequence[int], int]]:
    """Yields (Resume, steps, the run's first step) of each attempt after an attempt that made more than one step.

    Yields nothing if each attempt counts only its own steps.
    """
    told = [] if case.facts.ours else printed(case.history, case.history.run, case.facts)
    if counts_anew(told, case.facts):
        return
    by_name = dict(told)
    for each in resumes(case.history, case.result.files, case.facts.files):
        names = [attempt.name for attempt in case.history.attempts[: each.number]]
        before = [by_name[name] for name in names[:-1] if name in by_name]
        steps = by_name.get(names[-1])
        if steps and before and before[0][0] < before[-1][-1]:
            yield each, steps, before[0][0]


def _of_port(case: FailedDrill) -> str:
    said = _error(case)
    if not said or not PORT.search(said):
        return ""
    ports = case.text.fixed_ports if case.text else []
    if ports:
        return f"a port is hard-coded{_place(ports)}, and was taken: {_short(said)}"
    return f"a port that it wants was taken: {_short(said)}"


def _of_later(case: FailedDrill) -> str:
    """Returns words if the job came back after the fault, and then failed by itself."""
    hits = [hit.attempt for hit in case.result.hits]
    last = case.history.last
    if last is None or not hits or last.name in hits or not last.failed:
        return ""
    error = _of_error(case)
    return f"attempt {last.number} failed by itself: {error}" if error else ""


def _of_strike(case: FailedDrill) -> str:
    """Returns words if the job was killed in a save, and then failed because of the files that the kill left."""
    hit = case.result.hits[-1] if case.result.hits else None
    failed = _of_later(case) if hit and hit.moment else ""
    return f"killed {hit.moment}, it did not come back: {failed}" if hit and failed else ""


def _of_error(case: FailedDrill) -> str:
    if not case.history.attempts:
        return ""
    failure = find_failure(case.history)
    words = words_of_failure(case.history)
    cause = f" ({failure.known.cause})" if failure.known and not failure.said.startswith("Exited") else ""
    return f"{_short(words.replace(f'{case.history.run.code}/', ''))}{cause}" if words else ""


def words_of_failure(history: RunHistory) -> str:
    """Returns the program's error message, or the rank's last line if srun reports only an exit code."""
    failure = find_failure(history)
    printed = [line for line in failure.lines if line.strip() and not line.startswith(("clusterdp:", 'Try "'))]
    if failure.evidence == "srun" and printed:
        return f"{printed[-1]} ({failure.said})"
    return failure.error or "".join(printed[-1:])


def _error(case: FailedDrill) -> str:
    if case.result.state == "done" or not case.history.attempts:
        return ""
    failure = find_failure(case.history)
    words = " ".join([failure.error, *failure.lines]).strip()
    return _short(words.replace(f"{case.history.run.code}/", ""))


def _place(places: Sequence[CodePlace]) -> str:
    return f" ({at(places[0])})" if places else ""


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
