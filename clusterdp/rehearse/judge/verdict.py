"""Verdict: the outcome of a drill, such as passed or failed.

passed          the fault happened, the job came back by itself, and it ended in the state of the undisturbed run
failed          the fault happened, and the job did not come back, or its end state differs from the undisturbed run's
lost work       as passed, but steps saved before the fault were done again, more than the interval of saves
not landed      the fault was not proved in several tries, and the job was not tested
not applicable  the fault cannot happen to this job, or cannot be made on this machine
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clusterdp.operate.account.run_account import AttemptAccount, account_of
from clusterdp.operate.html_page.bars import seconds_by_kind
from clusterdp.operate.record.attempt_history import AttemptHistory
from clusterdp.operate.record.ending import ending_text
from clusterdp.operate.record.run_history import RunHistory
from clusterdp.operate.record.slurmstepd_notice import ended_by_slurm

PASSED, FAILED, INAPPLICABLE = "passed", "failed", "not applicable"
LOST_WORK, NOT_LANDED = "lost work", "not landed"
BAD = (FAILED, LOST_WORK)  # verdicts that mean a fault of the job
UNKNOWN = (INAPPLICABLE, NOT_LANDED)  # verdicts of drills that have shown nothing
SHORT = {INAPPLICABLE: "n/a"}  # shorter words for verdicts in narrow columns
BIT_FOR_BIT, WITHIN_SPREAD = "bit for bit", "within the spread of undisturbed runs"  # how end states are equal
NONE: Mapping[str, Sequence[int]] = {}
NO_TIMES: Mapping[str, float] = {}


@dataclass(frozen=True)
class HitRow:
    """A fault that a drill made in an attempt."""

    attempt: str
    at: float  # when the fault was made, in seconds since 1970
    step: int | None


@dataclass(frozen=True)
class Verdict:
    """The outcome of one drill."""

    drill: str
    about: str
    verdict: str
    said: str  # the verdict in a sentence
    diagnosis: str = ""  # the job's fault, if the drill has failed
    evidence: tuple[str, ...] = ()  # the proof of each hit, in words
    state: str = ""  # the result of comparing the end states
    differences: tuple[str, ...] = ()  # the first differences of the end states
    differing: int = 0  # the number of all differences of the end states
    lost: int | None = None  # steps that were done twice; None if the program prints no steps
    hits: tuple[HitRow, ...] = ()
    attempts: tuple[AttemptRow, ...] = ()
    settings: tuple[str, ...] = ()  # overrides of the config that only this drill has
    took_s: float = 0.0
    folder: str = ""
    tries: int = 1  # number of runs that were made until the fault happened
    compared: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class AttemptRow:
    """An attempt. Times are in seconds since 1970."""

    number: int
    name: str
    queued: float | None  # when the attempt began to wait
    began: float | None
    ended: float | None
    first_step: int | None
    last_step: int | None
    cause: str
    said: str  # the attempt's end, in words
    spent: Mapping[str, float]  # seconds by activity, in order: starting, training, lost, ending, unseen


def rows_of(
    history: RunHistory,
    printed: Mapping[str, Sequence[int]] = NONE,
    first_at: Mapping[str, float] = NO_TIMES,
    is_silent: bool = False,
) -> tuple[AttemptRow, ...]:
    """Returns a row for each attempt.

    `printed`, `first_at` and `is_silent` are for a program whose steps are not on record. `printed`: the steps that
    rank 0 has printed, by attempt. `first_at`: when the first printed step was seen, by attempt, in seconds since 1970.
    `is_silent`: whether the program prints no steps.
    """
    account = account_of(history, None, ended_by_slurm(history.run, history.attempts))
    return tuple(
        AttemptRow(
            number=each.number,
            name=each.name,
            queued=told.place.queued,
            began=told.place.begin or None,
            ended=told.place.end or None,
            first_step=each.first_step
            if each.first_step is not None
            else min(printed.get(each.name, ()), default=None),
            last_step=each.last_step if each.last_step is not None else max(printed.get(each.name, ()), default=None),
            cause=each.cause,
            said=_ending(each, printed.get(each.name, ()), is_silent),
            spent=_spent(told, first_at.get(each.name)),
        )
        for each, told in zip(history.attempts, account.attempts, strict=True)
    )


def _ending(attempt: AttemptHistory, printed: Sequence[int], is_silent: bool) -> str:
    """Returns words on an attempt's end.

    Without a recorded step, an attempt counts as ended at its start, unless it has printed steps or its program prints
    no steps.
    """
    if attempt.cause == "start" and printed:
        return f"crashed at step {max(printed)}"
    if attempt.cause == "start" and is_silent:
        attempt = attempt._replace(cause="crash")
    return ending_text(attempt) or "no ending on record"


def _spent(told: AttemptAccount, first_at: float | None) -> Mapping[str, float]:
    """Returns the seconds of an attempt by activity. The time before the first printed step counts as starting."""
    spent = seconds_by_kind(told)
    if first_at is not None:
        more = min(spent["training"], max(0.0, first_at - told.place.begin - spent["starting"]))
        spent["starting"] += more
        spent["training"] -= more
    return spent
