"""Causes: the words for how an attempt ended, which attempts/*/cause and the ledger have, and what they mean."""

import re
import time
from typing import List, NamedTuple, Optional

CAUSES = {
    # The run goes on after these. A fault is the program's own.
    "preempted": "preempted",
    "timeout": "out of time",
    "requeued": "requeued by the program or an administrator",
    "node-lost": "ended because its node failed",  # also: srun could launch nothing there
    "signal": "stopped by a signal",
    "asked": "asked to be requeued",
    "bad-node": "did not start: one of its nodes is on the run's avoid list",
    "preflight": "did not start because a node failed the preflight",
    "lost": "lost without a record (a node failed, or it was killed)",
    "crash": "crashed",
    "start": "crashed at its start",
    "memory": "ran out of memory",
    "hung": "hung",
    "disk": "found the disk full",
    # These end it.
    "done": "done",
    "cancelled": "cancelled",
    "stopped": "stopped for good",
    "gave-up": "gave up",
    "overtaken": "superseded",
    "unknown": "not requeued: Slurm's controller did not answer",
}
# Faults have restart.max_crashes as a common limit, besides their own.
FAULTS = frozenset(["crash", "start", "memory", "hung", "disk"])

# slurmstepd writes it into the job's output when it ends an attempt: the only record of who asked for that.
#     slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-31T10:41:09 DUE TO PREEMPTION ***
NOTICE = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ?([^*,\n]*)")
OF_NOTICE = {
    "": "cancelled",
    "DUE TO PREEMPTION": "preempted",
    "DUE TO JOB REQUEUE": "requeued",
    "DUE TO TIME LIMIT": "timeout",
    "DUE TO NODE FAILURE": "node-lost",
}


class Notice(NamedTuple):
    """`stamp`: when, by the clock of the first node, as it is written. `cause`: empty if its words are not known."""

    stamp: str
    cause: str

    @property
    def at(self) -> Optional[float]:
        """In seconds since 1970."""
        try:
            return time.mktime(time.strptime(self.stamp, "%Y-%m-%dT%H:%M:%S"))
        except (ValueError, OverflowError):
            return None


def notices(text: str) -> List[Notice]:
    """Those in a job's output, in the order in which they were written."""
    return [Notice(stamp, _cause_of(why.strip())) for stamp, why in NOTICE.findall(text)]


def _cause_of(why: str) -> str:
    """26.05 names the signal of a scancel: `DUE to SIGNAL Terminated`."""
    return OF_NOTICE.get("" if why.startswith("DUE to SIGNAL") else why, "")


def last_notice(text: str) -> Optional[Notice]:
    found = notices(text)
    return found[-1] if found else None


def of_outcome(word: str, reason: str) -> str:
    """The cause of an attempt whose ranks have left this outcome; empty if it does not tell."""
    if word == "done":
        return "done"
    if word == "stop":
        return {"cancelled": "cancelled", "claim": "overtaken"}.get(reason, "stopped")
    if word == "overtaken":
        return "overtaken"
    if word == "requeue":
        return "timeout" if reason == "time" else "preempted"
    return ""
