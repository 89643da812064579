"""Slurm's reasons why a job is pending (squeue %r), in words, with remedies for the user.

The names of reasons come from Slurm's src/common/job_state_reason.c. In a few cases slurmctld writes a sentence in
place of the name. A new reason needs a line in REASONS. A test compares the names with Slurm's list.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from clusterdp.operate.output.formatting import clock


class Reason(NamedTuple):
    """A reason explained: `words` is the explanation, and `do` the remedy, in which JOB stands for the job's id.
    `stuck` means that the job never starts by itself."""

    words: str
    do: str = ""
    stuck: bool = False


ASK_FOR_LESS = "cancel it, submit less"
# Only an administrator can release such a job.
TOO_OFTEN = Reason(
    "requeued as often as this site allows",
    "`clusterdp cancel`, then `clusterdp resume` go on in a new job",
    stuck=True,
)
BURST_BUFFER = "see `scontrol show burst`, and ask your site"
REASONS = {
    # The job waits in the queue.
    "None": Reason("Slurm has not looked at it yet"),
    "Resources": Reason("next in line, waiting for nodes to become free"),
    "Priority": Reason("jobs of higher priority come first", "`sprio -j JOB` says what its priority is made of"),
    "SchedDefer": Reason("asked to start at once, which this site does not do"),
    "Licenses": Reason("waits for a licence", "`scontrol show licenses` says who has them"),
    "BurstBufferResources": Reason("waits for room in the burst buffer", BURST_BUFFER),
    "BurstBufferStageIn": Reason("its data is being copied into the burst buffer"),
    "MpiPortsBusy": Reason("waits for ports of MPI on its nodes"),
    "MaxPoweredUpNodes": Reason("as many nodes are powered up as this site allows"),
    "NvidiaImexChannels": Reason("waits for an IMEX channel of NVIDIA's driver"),
    "JobArrayTaskLimit": Reason(
        "as many elements of the array run as may", "`scontrol update JobId=JOB ArrayTaskThrottle=N`"
    ),
    "FedJobLock": Reason("the clusters of the federation agree on which of them runs it"),
    "Prolog": Reason("the site's prolog is still running on its nodes"),
    "Cleaning": Reason(
        "its last attempt is still being cleaned up", "if that lasts, ask your site for stuck processes"
    ),
    # The job waits for a time, another job or a reservation.
    "BeginTime": Reason("may not start before its time"),
    "Dependency": Reason("waits for another job to end", "`scontrol show job JOB` has the job ids at Dependency="),
    "DependencyNeverSatisfied": Reason("waits for a job that failed, so it never starts", "cancel it", stuck=True),
    "Reservation": Reason("waits for its reservation to begin", "`scontrol show reservation` says when"),
    "ReservationDeleted": Reason("its reservation was deleted", "cancel it, submit without", stuck=True),
    "ReservationInvalid": Reason("its reservation cannot be used", "cancel it, submit without", stuck=True),
    "DeadLine": Reason("cannot end before its deadline", ASK_FOR_LESS, stuck=True),
    # The job is held.
    "JobHeldUser": Reason("held", "`scontrol release JOB` lets it go", stuck=True),
    "JobHeldAdmin": Reason("held by an administrator", "ask your site", stuck=True),
    "job requeued in held state": Reason("requeued and held", "`scontrol release JOB` lets it go", stuck=True),
    "JobHoldMaxRequeue": TOO_OFTEN,
    "launch failure limit exceeded requeued held": TOO_OFTEN,
    "launch failed requeued held": Reason(
        "a node failed to start it, and Slurm holds it", "`scontrol release JOB` lets it go", stuck=True
    ),
    "user env retrieval failed requeued held": Reason(
        "a node could not read your login environment, and Slurm holds it",
        "`scontrol release JOB` lets it go; look for what is slow or fails in ~/.bashrc",
        stuck=True,
    ),
    "JobLaunchFailure": Reason("a node failed to start it", "ask your site to look at slurmd's log there"),
    "BurstBufferOperation": Reason("an operation of the burst buffer failed", BURST_BUFFER, stuck=True),
    # The job waits because of the nodes or the partition.
    "ReqNodeNotAvail": Reason(
        "a node that it needs is down, drained or reserved",
        "less time may let it end before a reservation; `sinfo -R` says why nodes are down",
    ),
    "Nodes required for job are DOWN, DRAINED": Reason(
        "the nodes that it needs are down, drained or kept for higher partitions", "`sinfo -R` says why nodes are down"
    ),
    "NodeDown": Reason("a node that it needs is down", "`sinfo -R` says why"),
    "PartitionDown": Reason("the partition is down", "`sinfo -s` lists the others"),
    "PartitionInactive": Reason("the partition takes no jobs now", "`sinfo -s` lists the others"),
    "PartitionTimeLimit": Reason(
        "asks for more time than the partition allows, so it never starts", ASK_FOR_LESS, stuck=True
    ),
    "PartitionNodeLimit": Reason(
        "asks for more nodes than the partition allows, so it never starts", ASK_FOR_LESS, stuck=True
    ),
    "PartitionConfig": Reason(
        "asks for what the partition does not have, so it never starts", ASK_FOR_LESS, stuck=True
    ),
    "BadConstraints": Reason(
        "too few nodes have all that it asks for, so it never starts",
        "see resources.constraint and resources.exclude",
        stuck=True,
    ),
    "Constraints": Reason("no node has now all that it asks for", "see resources.constraint"),
    "MaxMemPerLimit": Reason("asks for more memory a node than is allowed", "see resources.mem", stuck=True),
    # The user lacks a permission.
    "InvalidAccount": Reason(
        "its account is not valid", "see resources.account; `sacctmgr show assoc user=$USER`", stuck=True
    ),
    "AccountNotAllowed": Reason("its account may not use this partition", "see resources.account", stuck=True),
    "InvalidQOS": Reason("its QOS is not valid", "see resources.qos; `sacctmgr show qos`", stuck=True),
    "QOSNotAllowed": Reason("its QOS may not be used with this partition or account", "see resources.qos", stuck=True),
    "QOSUsageThreshold": Reason("you have used too much of late for its QOS", "see resources.qos"),
    "AccountingPolicy": Reason("a limit of your account or QOS is reached"),
}

# The names of limits of an account (Slurm: association) or of a QOS contain the name of the limited resource.
COUNTED = {
    "BB": "burst buffer space",
    "Billing": "billing units",
    "CPU": "CPUs",
    "Cpu": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs (or other GRES)",
    "Job": "jobs",
    "Jobs": "jobs",
    "License": "licences",
    "Lic": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Resource": "resources",
    "SubmitJob": "jobs in the queue",
    "SubmitJobs": "jobs in the queue",
    "Time": "time",
    "Unknown": "some resource",
    "Wall": "time",
    "WallDuration": "time",
}
WHOSE = {"Assoc": "your account", "Association": "your account", "QOS": "its QOS", "": "its QOS"}
LATER = "it starts when some of them have ended"
# For each limit: the pattern of its name, the explanation with {whose} and {what}, the remedy, and `stuck`
LIMITS = (
    (
        r"(Assoc|QOS)Grp(\w+?)RunMin(?:ute)?s(?:Limit)?",
        "a limit of {whose} on {what} x time left is reached by the jobs that run",
        "it starts when they have run for longer; one that asks for less time may start sooner",
        False,
    ),
    (
        r"(Assoc|QOS)Grp(\w+?)Minutes(?:Limit)?",
        "a limit of {whose} is reached: its minutes of {what} are spent",
        "ask your site for more, or use another account or QOS",
        True,
    ),
    (
        r"(Assoc|QOS)Grp(\w+?)(?:Limit)?",
        "a limit of {whose} on {what} is reached by the jobs that run",
        LATER,
        False,
    ),
    (
        r"(Assoc|QOS)Max(\w+?)Min(?:ute)?sPerJob(?:Limit)?",
        "asks for more {what} x time than a limit of {whose} allows, so it never starts",
        ASK_FOR_LESS,
        True,
    ),
    (
        r"(Assoc|QOS)Max(\w+?)PerJob(?:Limit)?",
        "asks for more {what} than a limit of {whose} allows, so it never starts",
        ASK_FOR_LESS,
        True,
    ),
    (
        r"(Assoc|QOS)Max(\w+?)PerNode",
        "asks for more {what} on a node than a limit of {whose} allows, so it never starts",
        ASK_FOR_LESS,
        True,
    ),
    (
        r"(QOS|)Max(\w+?)(?:RunMins)?PerUser(?:Limit)?",
        "a limit of {whose} on a user's {what} is reached by your jobs",
        LATER,
        False,
    ),
    (
        r"()Max(\w+?)(?:RunMins)?PerAccount",
        "a limit of {whose} on an account's {what} is reached by the jobs of yours",
        LATER,
        False,
    ),
    (
        r"(Assoc)Max(\w+?)(?:Limit)?",
        "a limit of {whose} on a user's {what} is reached by your jobs",
        LATER,
        False,
    ),
    (
        r"(QOS)Min(\w+?)(?:NotSatisfied)?",
        "asks for less than the {what} that {whose} demands, so it never starts",
        "cancel it, submit more, or with another QOS",
        True,
    ),
    (
        r"(Association|QOS)(Job|Resource|Time)Limit",
        "a limit of {whose} on {what} is reached",
        LATER,
        False,
    ),
)


def explain(reason: str) -> Reason | None:
    """Returns the explanation of a reason; None if the reason is unknown. `reason` is the text that squeue, scontrol or
    sacct prints."""
    key = reason.split(",")[0].strip("() ").replace("_", " ")  # `ReqNodeNotAvail, UnavailableNodes:n2`
    if found := REASONS.get(key):
        return _with_nodes(found, reason)
    if reason.startswith("Nodes required for job are DOWN"):
        return REASONS["Nodes required for job are DOWN, DRAINED"]
    for pattern, words, do, stuck in LIMITS:
        if match := re.fullmatch(pattern, key):
            whose, what = WHOSE[match[1]], COUNTED.get(match[2], "some resource")
            return Reason(words.format(whose=whose, what=what), do, stuck)
    return None


def reason_text(reason: str, start: float | None = None, now: float | None = None) -> str:
    """Returns the name of a reason and its explanation, in a line: `Resources: next in line, waiting for nodes to
    become free`."""
    found = explain(reason)
    if found is None:
        return reason
    words = found.words
    if reason == "BeginTime" and start is not None:
        words = f"starts at {clock(start, now)} at the earliest"
    return f"{reason}: {words}; {found.do}" if found.stuck and found.do else f"{reason}: {words}"


def _with_nodes(found: Reason, reason: str) -> Reason:
    """Returns the explanation, extended by the names of unavailable nodes, if slurmctld names them, or by their
    maintenance."""
    if match := re.search(r"UnavailableNodes:(\S+?)\)?$", reason):
        return found._replace(words=f"{found.words}: {match[1]}")
    if "aintenance" in reason:
        return found._replace(words="its nodes are reserved for maintenance before it would end")
    return found
