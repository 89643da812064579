"""AttemptRow: one attempt of a run, as rehearsal.json and its page tell of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterdp.operate.account.run_account import account_of
from clusterdp.operate.event_text import ending_text
from clusterdp.operate.html_page.bars import seconds_by_kind
from clusterdp.operate.run_history import RunHistory
from clusterdp.operate.slurmstepd_notice import ended_by_slurm


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


def rows_of(history: RunHistory) -> tuple[AttemptRow, ...]:
    account = account_of(history, None, ended_by_slurm(history.run, history.attempts))
    return tuple(
        AttemptRow(
            number=each.number,
            name=each.name,
            queued=told.place.queued,
            began=told.place.begin or None,
            ended=told.place.end or None,
            first_step=each.first_step,
            last_step=each.last_step,
            cause=each.cause,
            said=ending_text(each) or "no ending on record",
            spent=seconds_by_kind(told),
        )
        for each, told in zip(history.attempts, account.attempts, strict=True)
    )
