"""What sacctmgr says of accounts: as which ones this user runs jobs, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

GROUP_LIMITS = ("GrpTRES", "GrpJobs", "GrpTRESMins")  # of all jobs of an account, and of the accounts below it
LIMITS = ("MaxWall", "MaxTRES", "MaxTRESMins", "MaxJobs", "MaxSubmit", *GROUP_LIMITS)
ASSOCIATION_FIELDS = ("Account", "Partition", "QOS", "DefaultQOS", "DefaultAccount", *LIMITS)
QOS_FIELDS = (
    *("MaxWall", "MinTRES", "MaxTRES", "MaxTRESPerNode", "MaxTRESPU", "MaxTRESPA", "GrpTRES", "MaxSubmitPU"),
    *("MaxTRESMins", "GrpTRESMins", "MaxJobsPU", "MaxJobsPA", "GrpJobs"),
    *("GraceTime", "Preempt", "PreemptMode", "Flags"),
)


@dataclass(frozen=True)
class Association:
    """Of this user with an account. partition: the only one where it holds; empty if it holds in all. is_default: jobs
    that name no account get this one. limits: some of LIMITS, also those that the account has and the user has not."""

    account: str
    qos: Sequence[str] = ()
    default_qos: str = ""
    partition: str = ""
    is_default: bool = False
    limits: Mapping[str, str] = field(default_factory=dict)


def read_associations(lines: Sequence[str]) -> list[Association]:
    """Of `sacctmgr --parsable2 show user withassoc`. Lines that are none are left out."""
    found = []
    for values in (line.split("|") for line in lines):
        row = dict(zip(ASSOCIATION_FIELDS, values, strict=False))
        if len(values) == len(ASSOCIATION_FIELDS) and (account := row["Account"]):
            qos = tuple(filter(None, row["QOS"].split(",")))
            limits = {name: row[name] for name in LIMITS if row[name]}
            is_default = row["DefaultAccount"] == account
            found.append(Association(account, qos, row["DefaultQOS"], row["Partition"], is_default, limits))
    return found
