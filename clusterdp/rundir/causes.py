"""Why an attempt ended: the words that attempts/*/cause and the ledger have, and what they mean.

The batch script finds the cause (sbatch_templates/parts: earlier.sh, end.sh, evidence.sh), and what follows is in the
table at its top (policy.sh), from the config's `restart`.
"""

from __future__ import annotations

CAUSES = {
    # The run goes on after these. A fault is the program's own.
    "preempted": "preempted",
    "timeout": "out of time",
    "requeued": "requeued by the program or an administrator",
    "node-lost": "ended, for its node failed",  # also: srun could launch nothing there
    "signal": "stopped by a signal",
    "asked": "asked to be requeued",
    "bad-node": "did not start, for it had a node that the run avoids",
    "preflight": "did not start, for a node failed the preflight",
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
    "unknown": "not requeued, for Slurm's controller did not answer",
}
FAULTS = frozenset({"crash", "start", "memory", "hung", "disk"})
