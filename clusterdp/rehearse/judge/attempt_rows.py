"""AttemptRow: one attempt of a run, as rehearsal.json and its page tell of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterdp.operate.account.run_account import account_of
from clusterdp.operate.attempt_history import AttemptHistory
from clusterdp.operate.event_text import ending_text
from clusterdp.operate.html_page.bars import seconds_by_kind
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.slurmstepd_notice import ended_by_slurm

NONE: Mapping[str, Sequence[int]] = {}


@dataclass(frozen=True)
class AttemptRow:
    """Times in seconds since 1970. queued: since when it waited. spent: seconds by what it did, in order: starting,
    training, lost, ending, unseen. said: how it ended, in words."""

    number: int
    name: str
    queued: float | None
    began: float | None
    ended: float | None
    first_step: int | None
    last_step: int | None
    cause: str
    said: str
    spent: Mapping[str, float]


def rows_of(history: RunHistory, printed: Mapping[str, Sequence[int]] = NONE) -> tuple[AttemptRow, ...]:
    """printed: steps that rank 0 of an attempt has printed, of a program whose steps are not on record."""
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
            said=_ending(each, printed.get(each.name, ())),
            spent=seconds_by_kind(told),
        )
        for each, told in zip(history.attempts, account.attempts, strict=True)
    )


def _ending(attempt: AttemptHistory, printed: Sequence[int]) -> str:
    """An attempt that has printed steps did not end at its start, though no step is on record."""
    if attempt.cause == "start" and printed:
        return f"crashed at step {max(printed)}"
    return ending_text(attempt) or "no ending on record"
