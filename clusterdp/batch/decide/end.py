"""The decision at the end of an attempt. All functions are pure, except is_repeated(), which is called only if
needed."""

from typing import Callable, NamedTuple, Sequence, Tuple

from ..files.record import one_line
from ..files.rules import Rules
from ..processes import slurm
from .decisions import Decision, End, Leave, Requeue
from .evidence import Failure, Fault
from .history import SHORT_S, History
from .policy import exhausted

GOES_ON = "`clusterdp resume {run}` goes on with the run."
ASKS_AGAIN = 75  # EX_TEMPFAIL: the program has saved and asks for a requeue


class Ended(NamedTuple):
    """How the step has ended."""

    code: int
    took_s: int
    word: str = ""  # first word of the ranks' outcome, to which `reason` and `step` belong; empty without an outcome
    reason: str = ""
    step: int = 0
    saved: bool = False
    in_setup: bool = False  # whether a line of launch.setup has failed, so that no step has run
    has_kills: bool = False  # whether the kernel has killed a process for lack of memory

    @property
    def cost_s(self) -> int:
        return 0 if self.saved else self.took_s


def by_the_ranks(ended: Ended) -> Tuple[End, ...]:
    """Returns the End that the ranks' outcome demands; empty if the outcome does not end the run."""
    word, reason = ended.word, ended.reason
    if word == "done":
        return (End("done", "finished", 0, {"step": ended.step}),)
    if (word, reason) == ("stop", "cancelled"):
        return (End("cancelled", "cancelled", 1),)
    if word == "overtaken" or (word, reason) == ("stop", "claim"):
        return (End("overtaken", "failed", 1, {"reason": "claim"}),)
    if (word, reason) == ("stop", "user"):
        return (End.by_user(),)
    if word == "stop":
        code = 2 if reason == "entry" else 1
        return (End("stopped", "failed", code, {"reason": reason, "exit": code}),)
    return ()


def by_slurm(ended: Ended, now: str, history: History, rules: Rules) -> Tuple[Decision, ...]:
    """Returns the decision that follows from the job's state, the ranks' outcome and the exit code; empty if the
    program or a node has failed. now: the job's state, as in slurm.Look.state."""
    if now in (slurm.ENDING, slurm.REQUEUED):
        return (Leave(ended.code),)
    if now == slurm.UNKNOWN:
        why = "Slurm's controller has not answered for {} minutes".format(slurm.PATIENCE_S // 60)
        said = why + ", so nobody knows whether this job may go on. What was saved is safe: "
        said += "`clusterdp resume {run}` goes on with it."
        return (End("unknown", "failed", ASKS_AGAIN, {"reason": why, "exit": ended.code}, said),)
    if now == slurm.PREEMPTED:  # whatever the exit code: a program killed in its grace time has not crashed
        return (requeued("preempted", ended, history, rules),)
    if now == slurm.TIME_LIMIT:
        return (requeued("timeout", ended, history, rules),)
    if ended.word == "requeue":
        cause = {"time": "timeout", "grown": "grown"}.get(ended.reason, "signal")
        return (requeued(cause, ended, history, rules),)
    if rules.kind != "entry" and ended.code == 0:
        said = "the kernel has killed a process for lack of memory, though the program has ended with 0; see {logs}"
        return (End("done", "finished", 0, {}, said if ended.has_kills else ""),)
    if rules.kind != "entry" and ended.code == ASKS_AGAIN:
        return (_asked(ended, history, rules),)
    return ()


def by_nodes(failed: Sequence[str], ended: Ended, history: History, rules: Rules) -> Decision:
    """Returns the decision after these nodes have failed."""
    said = "lost {}: a failed node, not a fault of the program.".format(" ".join(failed))
    return requeued("node-lost", ended, history, rules, said)


def by_srun(refusal: str, is_repeated: bool, ended: Ended, history: History, rules: Rules) -> Decision:
    """Returns the decision after srun itself has failed, so that no rank began. refusal: srun's line. is_repeated:
    whether Slurm will refuse the step again, because it has refused the same step before."""
    said = "srun could not start the ranks, which is no fault of the program: {}".format(one_line(refusal))
    if not is_repeated:
        return requeued("node-lost", ended, history, rules, said)
    details = {"exit": ended.code, "error": one_line(refusal), "reason": "the same error as before"}
    return End("node-lost", "failed", ended.code or 1, details, said + ", for the second time; see {logs}")


def _asked(ended: Ended, history: History, rules: Rules) -> Decision:
    """Returns a requeue, or the end of a run whose program asks within a minute each time: such a run saves nothing."""
    times = history.short + 1
    if ended.took_s < SHORT_S and times >= rules.max_no_progress:
        why = "{} attempt(s) in a row that asked to be requeued (exit 75) within a minute".format(times)
        return End.gave_up(why, why + "; giving up. See {logs}")
    return requeued("asked", ended, history, rules)


def requeued(cause: str, ended: Ended, history: History, rules: Rules, said: str = "") -> Decision:
    after = history.with_end(cause, ended.cost_s, ended.saved)
    why = exhausted(after, cause, rules)
    if not why:
        return Requeue(cause, said)
    return End.gave_up(why, " ".join(filter(None, [said, why + "; giving up.", GOES_ON])))


def by_fault(
    ended: Ended, fault: Fault, failure: Failure, history: History, rules: Rules, is_repeated: Callable[[], bool]
) -> Decision:
    """Returns the decision after the program has failed. is_repeated: a function that returns whether the error is the
    same as before; not called for a missing program."""
    after = history.with_end(fault.cause, ended.cost_s, ended.saved)
    error = one_line(failure.error or failure.reported)
    details = {"exit": ended.code, **({"error": error} if error else {})}
    if failure.rank is not None:
        details["rank"] = failure.rank
    why = ""
    if history.missing and ended.code in (126, 127) and not ended.in_setup:
        why = "the program was not found or cannot be executed"  # the second time, so that one node is not the reason
    elif is_repeated():
        why = "the same error as before: " + error
    forbidden = why or exhausted(after, fault.cause, rules)
    if not forbidden:
        words = "{} with exit code {} ({} of {} faults that are tried again); see {{logs}}"
        said = words.format(fault.how, ended.code, after.faults, rules.max_crashes)
        return Requeue(fault.cause, said, details)
    said = "{} with exit code {}, for the last time: {}; see {{logs}}".format(fault.how, ended.code, forbidden)
    if not forbidden.startswith("{} fault".format(after.faults)):  # the list of attempts already shows the faults
        details["reason"] = forbidden
    return End(fault.cause, "failed", ended.code or 1, details, said)
