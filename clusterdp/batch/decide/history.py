"""History: a summary of the earlier attempts of a job. Pure."""

import json
from typing import NamedTuple, Optional, Sequence, Tuple, Union

from ..files.causes import FAULTS
from .attempts import Attempt
from .decisions import End

SHORT_S = 60  # seconds; an attempt that asks for a requeue earlier has done no work


class History(NamedTuple):
    ended: Tuple[str, ...] = ()  # causes of all attempts that count, the oldest first
    row: Tuple[str, ...] = ()  # causes since the last attempt that saved, including its cause
    idle: int = 0  # number of attempts since the last attempt that saved
    spent_s: int = 0  # allocated seconds of these `idle` attempts
    since: Tuple[str, ...] = ()  # names of these `idle` attempts
    missing: int = 0  # number of attempts in a row whose program was not found
    short: int = 0  # number of attempts in a row that asked for a requeue within SHORT_S
    moved: int = 0  # number of attempts in a row that did not start, because they got a node that the run avoids
    bad: Tuple[str, ...] = ()  # avoided nodes, those of the newest attempt first
    links: int = 1  # number of jobs in the chain, including this job
    over_at: int = 0  # end of the last attempt, in seconds since 1970

    @property
    def faults(self) -> int:
        return sum(cause in FAULTS for cause in self.ended)

    def times(self, cause: str) -> int:
        return sum(each == cause for each in self.ended)

    def with_end(self, cause: str, took_s: int, saved: bool) -> "History":
        """Returns the history with the end of one more attempt."""
        return self._replace(
            ended=(*self.ended, cause),
            row=(() if saved else self.row) + (cause,),
            spent_s=0 if saved else self.spent_s + took_s,
        )


def step_to_begin_at(from_step: Optional[int], attempts: Sequence[Attempt]) -> Optional[int]:
    """Returns the step to which `resume --from` goes back; None if the ranks restore the newest checkpoint (of the disk
    or in memory), or else begin. Only the jobs that this resume has started count, in whatever way they follow each
    other, and only until one has saved. attempts: those of this job's chain."""
    return None if any(attempt.saved for attempt in attempts) else from_step


def history_of(attempts: Sequence[Attempt], job: str) -> Union[History, End]:
    """Returns the history. If an attempt has ended the run, returns an End, so that the run stays over. (Since 24.05,
    Slurm requeues a job that was once preempted when the job ends, whatever its exit code.) job: this job."""
    history, linked = History(), job
    for attempt in attempts:
        if attempt.job != linked:
            history, linked = history._replace(links=history.links + 1), attempt.job
        history = history._replace(bad=attempt.avoid + history.bad)
        if attempt.cause in ("overtaken", "early") or attempt.reason == "claim":
            continue  # this attempt does not count: another one had taken over the run, or it has only looked
        if attempt.cause == "bad-node":
            history = history._replace(moved=history.moved + 1)
            continue
        over = _over(attempt)
        if over:
            return over
        history = _counted(history, attempt)
    return history


def _counted(history: History, attempt: Attempt) -> History:
    took = attempt.took or 0
    after = history.with_end(attempt.cause, took, attempt.saved)
    is_short = attempt.cause == "asked" and attempt.code == "75" and took < SHORT_S
    return after._replace(
        idle=0 if attempt.saved else history.idle + 1,
        since=(() if attempt.saved else history.since) + (attempt.name,),
        missing=history.missing + 1 if attempt.code in ("126", "127") else 0,
        short=history.short + 1 if is_short else 0,
        moved=0,
        over_at=attempt.over_at or 0,
    )


def _over(attempt: Attempt) -> Union[End, None]:
    """Returns the End if this attempt has ended the run; None if the run continues."""
    goes_on = "`clusterdp resume {run}` goes on with the run."
    cause, word, reason = attempt.cause, attempt.word, attempt.reason
    if cause == "done" or word == "done":
        said = "attempt {} has finished this run. To run it again, submit a new run."
        return End("done", "finished", 0, {}, said.format(attempt.name))
    if cause == "cancelled" or (word, reason) == ("stop", "cancelled"):
        return End("cancelled", "cancelled", 1, {}, "attempt {} was cancelled. ".format(attempt.name) + goes_on)
    if (word, reason) == ("stop", "user") or (cause == "stopped" and word in ("", "requeue")):
        # The user's stop: the ranks agreed to it, or had already ended in another way.
        said = "attempt {} was asked to stop. ".format(attempt.name) + goes_on
        return End.by_user(said)
    if cause == "stopped" or word == "stop":
        said = "attempt {} has stopped this run for good. See `clusterdp status {{run}}`.".format(attempt.name)
        return End("stopped", "failed", 1, {"reason": reason}, said)
    return _own_word(attempt, goes_on)


def _own_word(attempt: Attempt, goes_on: str) -> Union[End, None]:
    """Returns the End that the attempt itself has recorded. If an attempt was requeued, its last event is `requeued`,
    and there is no End."""
    if attempt.cause not in FAULTS and attempt.cause != "gave-up":
        return None
    try:
        event = json.loads(attempt.last_event)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or event.get("event") != "failed" or event.get("cause") != attempt.cause:
        return None
    details = {key: value for key, value in event.items() if key not in ("time", "event", "attempt", "cause")}
    said = "attempt {} has ended this run ({}). ".format(attempt.name, attempt.cause) + goes_on
    return End(attempt.cause, "failed", 1, details, said)
