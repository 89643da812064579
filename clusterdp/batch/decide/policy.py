"""Policy: whether an attempt may start, whether one more may follow, when, and on which nodes. Pure."""

import re
from typing import Iterable, List, Optional, Sequence, Union

from ..files.causes import FAULTS
from ..files.rules import Rules
from .decisions import Decision, End, Start
from .history import History

LONGEST_S = 3600
HELD_S = 120  # seconds for which Slurm itself holds a requeued job
# A full disk needs time. Lack of memory would come again, and Slurm calls a job OUT_OF_MEMORY if one of its steps was.
IN_PLACE = FAULTS - {"disk", "memory"}
LIVES = 2  # number of attempts in one allocation that may fail without a newer checkpoint
GOES_ON = "`clusterdp resume {run}` goes on with it."
CANCELLED = End("cancelled", "cancelled", 1, {}, "this run was cancelled; not starting. " + GOES_ON)
FAILED_LAUNCH = re.compile(r"^srun: error: Task launch for .* failed on node ([^: \n]+): .*", re.MULTILINE)
FAILED_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.MULTILINE)


def exhausted(history: History, cause: str, rules: Rules, more: int = 0) -> str:
    """Returns the limit that forbids one more attempt after an end with this cause; empty if no limit forbids it. more:
    number of ends that are not yet in the history."""
    times, faults = history.times(cause) + more, history.faults + (more if cause in FAULTS else 0)
    attempts = len(history.ended) + more
    limit = rules.policy(cause).limit
    if cause in FAULTS and faults > rules.max_crashes:
        return "{} fault(s), where restart.max_crashes is {}".format(faults, rules.max_crashes)
    if limit is not None and times > limit:
        words = "{} attempt(s) that ended so ({}), where restart.{}.limit is {}"
        return words.format(times, cause, cause.replace("-", "_"), limit)
    if rules.max_attempts and attempts >= rules.max_attempts:
        return "{} attempt(s), where restart.max_attempts is {}".format(attempts, rules.max_attempts)
    if rules.max_hours and history.spent_s >= int(rules.max_hours * 3600):
        words = "{} allocated hours without a newer checkpoint, where restart.max_hours is {}"
        return words.format(history.spent_s // 3600, rules.max_hours)
    return ""


def pause_s(history: History, cause: str, rules: Rules, now: float, since: Optional[float] = None) -> int:
    """Returns the seconds until an attempt may begin after an end with this cause. since: the time of the end, by
    default history.over_at. The pause doubles with each end of this cause in a row; a checkpoint resets the pause."""
    least, left = rules.policy(cause).wait_s, 0
    for each in history.row:
        left = 0 if each != cause else left * 2 or least
    left = min(left, LONGEST_S)
    # No longer than the pause: the clock of the node before may have been ahead.
    return max(0, min(left, left + int(history.over_at if since is None else since) - int(now)))


def may_start(history: Union[History, End], rules: Rules, is_cancelled: bool, is_stopped: bool, now: float) -> Decision:
    """Returns a Start with the seconds to wait first, or an End."""
    if isinstance(history, End):
        return history
    if is_cancelled:
        return CANCELLED
    if is_stopped:
        return End.by_user("this run was asked to stop; not starting. " + GOES_ON)
    cause = history.ended[-1] if history.ended else ""
    why = exhausted(history, cause, rules) if cause else ""  # checked because Slurm may have requeued the job by itself
    if why:
        return End.gave_up(why, why + "; not starting. `clusterdp resume {run}` goes on with the run.")
    if rules.kind == "entry" and history.idle >= rules.max_no_progress:
        why = "{} attempt(s) in a row without a new checkpoint".format(history.idle)
        return End.gave_up(why, why + "; giving up. See `clusterdp status {run}`.")
    wait_s = pause_s(history, cause, rules, now) if cause else 0
    said = "restart.{}.wait_s: this attempt begins in {} s.".format(cause.replace("-", "_"), wait_s)
    return Start(wait_s, said if wait_s else "")


def restarts_in_place(cause: str, rules: Rules) -> bool:
    """Returns whether an end with this cause may be followed by an attempt in this allocation, not through the
    queue."""
    return rules.in_place and (cause in IN_PLACE or (cause == "node-lost" and rules.may_lose_nodes))


def size_on(nodes: int, rules: Rules) -> int:
    """Returns the number of nodes with ranks in a job that has so many good nodes left; 0 if they are too few: that
    with which the job began, or the next one of its range."""
    return max((size for size in (rules.nodes, *rules.sizes) if size <= min(nodes, rules.nodes)), default=0)


def not_in_place(
    cause: str, start: str, has_saved: bool, history: History, rules: Rules, left_s: Optional[float]
) -> str:
    """Returns the reason why the next attempt does not start in this allocation, though the cause allows it; empty if
    it may start.

    start: the name of the first attempt in this allocation. has_saved: whether the attempt that has failed has saved.
    left_s: seconds until the time limit; None without a limit. After its warning, a new step would not get the warning.
    """
    wait_s = pause_s(history.with_end(cause, 0, has_saved), cause, rules, 0, 0)
    if wait_s > HELD_S:
        return "the {} s of restart.{}.wait_s pass in the queue".format(wait_s, cause.replace("-", "_"))
    if left_s is not None and left_s <= rules.warned_s + wait_s:
        return "the time limit is {:.0f} s away".format(max(left_s, 0))
    failed = 0 if has_saved else 1 + sum(name == start or name.startswith(start + ".") for name in history.since)
    if cause != "node-lost" and failed >= LIVES:  # the number of nodes is the limit for lost ones
        return "{} attempts in this allocation have saved nothing".format(failed)
    return ""


def not_launched(said: str) -> List[str]:
    """Returns the nodes on which srun could not launch a task, because their slurmd is dead and Slurm has not noticed
    yet."""
    return sorted(set(FAILED_LAUNCH.findall(said)))


def failed_nodes(said: str) -> List[str]:
    """Returns the nodes that have failed, in Slurm's notation: srun could not launch a task there, or lost them while a
    --no-kill job went on."""
    return sorted({*not_launched(said), *FAILED_NODE.findall(said)})


def avoided(wanted: Iterable[str], usable: Iterable[str], needed: int, always: str, must: Sequence[str]) -> str:
    """Returns the value of ExcNodeList: `always`, and each wanted node without which enough usable nodes are left for
    the job. A node that is down counts, too: it may come back, and the job would wait for ever beside it. wanted: nodes
    to avoid, the most important first. must: nodes that the job must have."""
    names, left = [name for name in always.split(",") if name], set(usable)
    for node in wanted:
        if node not in must and node not in names and len(left - {node}) >= needed:
            left.discard(node)
            names.append(node)
    return ",".join(names)
