"""Causes: the words in attempts/*/cause and in the ledger that say how an attempt ended, and the meanings of the
words."""

import re
import time
from typing import List, NamedTuple, Optional

CAUSES = {
    # The run continues after these causes. Some of them are faults of the program itself (FAULTS).
    "preempted": "preempted",
    "timeout": "out of time",
    "requeued": "requeued by the program or an administrator",
    "node-lost": "ended because a node failed, or Slurm could not start its ranks",
    "signal": "stopped by a signal",
    "asked": "asked to be requeued",
    "grown": "stopped to go on with more nodes",
    "bad-node": "did not start: one of its nodes is on the run's avoid list",
    "early": "did not start: a run that it follows goes on in another job",
    "preflight": "did not start because a node failed the preflight",
    "lost": "lost without a record (a node failed, or it was killed)",
    "crash": "crashed",
    "start": "crashed at its start",
    "memory": "ran out of memory",
    "hung": "hung",
    "disk": "found the disk full",
    # These causes end the run.
    "done": "done",
    "cancelled": "cancelled",
    "stopped": "stopped for good",
    "gave-up": "gave up",
    "overtaken": "superseded",
    "unknown": "not requeued: Slurm's controller did not answer",
}
NOT_BEGUN = ("early", "gave-up")  # causes of attempts that may have ended before their program began
SILENT = "down, cut off from the network, or all processes are stopped"  # a node that gives no sign of life
# restart.max_crashes limits the number of all faults together, in addition to the limit of each fault.
FAULTS = frozenset(["crash", "start", "memory", "hung", "disk"])

# slurmstepd writes this notice into the job's output when it ends an attempt. No other record has the reason.
# slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO PREEMPTION ***
NOTICE = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ?([^*,\n]*)")
OF_NOTICE = {
    "": "cancelled",
    "DUE TO PREEMPTION": "preempted",
    "DUE TO JOB REQUEUE": "requeued",
    "DUE TO TIME LIMIT": "timeout",
    "DUE TO NODE FAILURE": "node-lost",
}


class Notice(NamedTuple):
    """`stamp`: the time in the notice, by the clock of the first node. `cause`: empty if the notice's words are
    unknown."""

    stamp: str
    cause: str

    @property
    def at(self) -> Optional[float]:
        """The time of the notice in seconds since 1970."""
        try:
            return time.mktime(time.strptime(self.stamp, "%Y-%m-%dT%H:%M:%S"))
        except (ValueError, OverflowError):
            return None


def notices(text: str) -> List[Notice]:
    """Returns the notices in a job's output, in the order in which they were written."""
    return [Notice(stamp, _cause_of(why.strip())) for stamp, why in NOTICE.findall(text)]


def _cause_of(why: str) -> str:
    """Returns the cause for the words of a notice. For a scancel, Slurm 26.05 adds the signal: `DUE to SIGNAL
    Terminated`."""
    return OF_NOTICE.get("" if why.startswith("DUE to SIGNAL") else why, "")


def last_notice(text: str) -> Optional[Notice]:
    found = notices(text)
    return found[-1] if found else None


def of_outcome(word: str, reason: str) -> str:
    """Returns the cause of an attempt from the outcome of its ranks; empty if the outcome does not determine the
    cause."""
    if word == "done":
        return "done"
    if word == "stop":
        return {"cancelled": "cancelled", "claim": "overtaken"}.get(reason, "stopped")
    if word == "overtaken":
        return "overtaken"
    if word == "requeue":
        return "timeout" if reason == "time" else "preempted"
    return ""
