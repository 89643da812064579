"""May this attempt start? Pure."""

from typing import Sequence, Union

from .decisions import Decision, End, Start
from .history import History
from .policy import exhausted, pause_s
from .rules import Rules

GOES_ON = "`clusterdp resume {run}` goes on with it."
CANCELLED = End("cancelled", "cancelled", 1, {}, "this run was cancelled; not starting. " + GOES_ON)


def may_start(history: Union[History, End], rules: Rules, is_cancelled: bool, is_stopped: bool, now: float) -> Decision:
    """Start, with the seconds that are to be waited first, or End."""
    if isinstance(history, End):
        return history
    if is_cancelled:
        return CANCELLED
    if is_stopped:
        return End.by_user("this run was asked to stop; not starting. " + GOES_ON)
    cause = history.ended[-1] if history.ended else ""
    why = exhausted(history, cause, rules) if cause else ""  # Slurm requeued it by itself
    if why:
        return End.gave_up(why, why + "; not starting. `clusterdp resume {run}` goes on with the run.")
    if rules.kind == "entry" and history.idle >= rules.max_no_progress:
        why = "{} attempt(s) in a row without a new checkpoint".format(history.idle)
        return End.gave_up(why, why + "; giving up. See `clusterdp status {run}`.")
    wait_s = pause_s(history, cause, rules, now) if cause else 0
    said = "restart.{}.wait_s: this attempt begins in {} s.".format(cause.replace("-", "_"), wait_s)
    return Start(wait_s, said if wait_s else "")


def has_bad_node(nodes: Sequence[str], excluded: str, history: History) -> bool:
    """Whether Slurm, which requeued the job by itself, took a node again that the run avoids. Once: it goes back into
    the queue then, and is not asked again."""
    return not history.moved and bool(set(nodes) & set(excluded.split(",")))
