"""Associations: what Slurm's accounting has of a user's memberships in accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

GROUP_LIMITS = ("GrpTRES", "GrpJobs", "GrpTRESMins")  # limits on all jobs of an account and its child accounts
LIMITS = ("MaxWall", "MaxTRES", "MaxTRESMins", "MaxJobs", "MaxSubmit", *GROUP_LIMITS)
ASSOCIATION_FIELDS = ("Account", "Partition", "QOS", "DefaultQOS", "DefaultAccount", *LIMITS)


class Association(NamedTuple):
    """An association in Slurm's accounting: this user's membership in an account."""

    account: str
    qos: Sequence[str] = ()
    default_qos: str = ""
    partition: str = ""  # the only partition where the association is valid; empty: all
    is_default: bool = False  # jobs that name no account get this account
    limits: Mapping[str, str] = MappingProxyType({})  # values of LIMITS, also if inherited from the account


def read_associations(lines: Sequence[str]) -> list[Association]:
    """Returns the associations in the output of `sacctmgr --parsable2 show user withassoc`. Skips other lines."""
    found = []
    for values in (line.split("|") for line in lines):
        row = dict(zip(ASSOCIATION_FIELDS, values, strict=False))
        if len(values) == len(ASSOCIATION_FIELDS) and (account := row["Account"]):
            qos = tuple(filter(None, row["QOS"].split(",")))
            limits = {name: row[name] for name in LIMITS if row[name]}
            is_default = row["DefaultAccount"] == account
            found.append(Association(account, qos, row["DefaultQOS"], row["Partition"], is_default, limits))
    return found
