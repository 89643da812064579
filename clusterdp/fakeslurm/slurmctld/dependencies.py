"""The option --dependency: the jobs that a job waits for, and whether it can still start."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.error_texts import DEPENDENCY, ControllerError
from ..core.model import JobRecord, Model
from ..core.state import JobState

KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer")


@dataclass(frozen=True)
class Dependency:
    kind: str  # a word of KINDS, or singleton
    job: int = 0
    index: int | None = None  # index of an array element; None: the whole job
    minutes: int = 0  # after:JOB+MINUTES

    def __str__(self) -> str:
        if self.kind == "singleton":
            return self.kind
        element = "" if self.index is None else f"_{self.index}"
        return f"{self.kind}:{self.job}{element}" + (f"+{self.minutes}" if self.minutes else "")


@dataclass(frozen=True)
class DependencyState:
    """Whether a job's dependencies are fulfilled."""

    done: bool  # whether all dependencies are fulfilled
    impossible: bool  # whether the dependencies can never be fulfilled
    text: str  # the unfulfilled dependencies, as squeue -o %E shows them


def parse(text: str) -> tuple[list[Dependency], bool]:
    """Returns the dependencies, and whether one fulfilled dependency is enough (`?` between them). Raises
    ControllerError."""
    if "," in text and "?" in text:
        raise ControllerError(DEPENDENCY, numbered=True)
    terms: list[Dependency] = []
    for part in re.split(r"[,?]", text):
        kind, _, jobs = part.partition(":")
        if kind == "singleton" and not jobs:
            terms.append(Dependency("singleton"))
            continue
        # Slurm also accepts afterok:1,2 for afterok:1:2.
        if kind.isdigit() and not jobs and terms and terms[-1].kind != "singleton":
            kind, jobs = terms[-1].kind, kind
        if kind not in KINDS or not jobs:
            raise ControllerError(DEPENDENCY, numbered=True)
        for job in jobs.split(":"):
            match = re.fullmatch(r"(\d+)(?:_(\d+|\*))?(?:\+(\d+))?", job)
            if not match:
                raise ControllerError(DEPENDENCY, numbered=True)
            if match[3] and not int(match[3]):
                raise ControllerError(DEPENDENCY, numbered=True)
            index = int(match[2]) if match[2] and match[2] != "*" else None
            terms.append(Dependency(kind, int(match[1]), index, int(match[3] or 0)))
    return terms, "?" in text


def check_known(model: Model, terms: list[Dependency]) -> None:
    """Raises ControllerError if one of the dependencies names a job that does not exist."""
    if not all(term.kind == "singleton" or model.jobs.named(term.job) for term in terms):
        raise ControllerError(DEPENDENCY, numbered=True)


def dependency_state(model: Model, job: JobRecord, now: float) -> DependencyState:
    if not job.desc.dependency or job.dependency_met:
        return DependencyState(True, False, "")
    terms, any_will_do = parse(job.desc.dependency)
    verdicts = [(term, "unfulfilled" if job.held else _verdict(model, job, term, now)) for term in terms]
    left = [(term, verdict) for term, verdict in verdicts if verdict != "fulfilled"]
    failed = [term for term, verdict in verdicts if verdict == "failed"]
    separator = "?" if any_will_do else ","
    text = separator.join(f"{_shown(model, term)}({verdict})" for term, verdict in left)
    if any_will_do:
        done = len(left) < len(terms)
        return DependencyState(done, not done and len(failed) == len(terms), "" if done else text)
    return DependencyState(not left, bool(failed), text)


def _shown(model: Model, term: Dependency) -> str:
    targets = _targets(model, term)
    if term.kind != "singleton" and term.index is None and any(target.array for target in targets):
        return f"{term.kind}:{term.job}_*"
    return str(term)


def _targets(model: Model, term: Dependency) -> list[JobRecord]:
    elements = model.elements(term.job)
    if elements:
        if term.index is None:
            return elements
        return [job for job in elements if job.array and term.index in job.array.indexes]
    job = model.jobs.get(term.job)
    return [job] if job else []


def _verdict(model: Model, job: JobRecord, term: Dependency, now: float) -> str:
    if term.kind == "singleton":
        return "unfulfilled" if _has_elder(model, job) else "fulfilled"
    targets = _targets(model, term)
    if term.kind == "aftercorr" and job.array and not job.array.split:
        return "unfulfilled"  # the scheduler makes each element a job of its own, and only then looks
    if term.kind == "aftercorr" and job.array:
        targets = [t for t in targets if t.array and job.array.indexes[0] in t.array.indexes] or targets
    if term.kind == "after":
        minutes = term.minutes * model.settings.minute_s
        begun = all(t.over or (t.start is not None and not t.waits and now >= t.start + minutes) for t in targets)
        forgotten = term.index is None and any(map(_is_counted_as_waiting, targets))
        return "fulfilled" if begun and not forgotten else "unfulfilled"
    # A dependency waits for the end of the last attempt, because a job that is requeued is not over.
    if not all(target.over for target in targets):
        return "unfulfilled"
    good = all(target.state is JobState.COMPLETED for target in targets)
    if term.kind in ("afterok", "aftercorr") and not good:
        return "failed"
    if term.kind == "afternotok" and targets and all(t.state is JobState.COMPLETED for t in targets):
        return "failed"
    return "fulfilled"


def _has_elder(model: Model, job: JobRecord) -> bool:
    """Whether an earlier job with the same name is not over."""

    def number(one: JobRecord) -> int:
        return one.array.id if one.array else one.id

    return any(other.desc.name == job.desc.name and number(other) < number(job) for other in model.live_jobs())


def _is_counted_as_waiting(job: JobRecord) -> bool:
    """Whether Slurm counts array elements as waiting although they are over. Slurm counts them if the waiting array was
    cancelled as a whole, not element by element (source: test_job_array_pending in job_mgr.c).
    """
    array = job.array
    if not array or array.split or array.emptied or not job.over:
        return False
    return len(array.indexes) > 1 or array.count == 1  # the last waiting element of several has a record of its own
