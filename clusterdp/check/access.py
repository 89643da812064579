"""Who may use a partition, an account or a QOS: Slurm refuses the job of whoever may not."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator, Mapping

from clusterdp.check.cluster_facts import ALL, ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.wording import did_you_mean

REFUSED = "the job is refused"
UNKNOWN = "without accounting Slurm knows no account, and lets no job in"
STRANGER = "accounting has no association of yours, so that Slurm knows neither account nor QOS, and lets no job in"
NAMED = "Name one of those."


def partition_access(
    subject: Subject, cluster: ClusterFacts, name: str, limits: Mapping[str, str]
) -> Iterator[Finding]:
    key, resources = "resources.partition", subject.config.resources
    if os.geteuid() != 0:
        groups = limits.get("AllowGroups", "ALL")
        if groups not in ALL and (mine := my_groups()) and not mine & set(groups.split(",")):
            what = f"{name} is for groups that you are not in: AllowGroups={groups}"
            yield Finding("error", key, what, REFUSED, "Name another.")
        if limits.get("RootOnly") == "YES":
            yield Finding("error", key, f"{name} is for root alone: RootOnly=YES", REFUSED, "Name another.")
    if limits.get("ReqResv") == "YES" and not resources.reservation and "reservation" not in resources.extra:
        what = f"{name} takes jobs of a reservation alone: ReqResv=YES"
        yield Finding("error", key, what, REFUSED, "Set resources.reservation, or name another partition.")
    account = cluster.account_of(resources)
    yield from _of_account(cluster, account, name, limits)
    only = {each.partition for each in cluster.associations if each.account == account}
    if only.isdisjoint({name, ""}) and only and cluster.enforces("associations"):
        what = f"you may use {account} in {', '.join(sorted(only))} alone, and not in {name}"
        yield Finding("error", "resources.account", what, REFUSED, "Name another, or another partition.")
    yield from _of_qos(cluster, cluster.job_qos(resources, name), name, limits)


def my_groups() -> set[str]:
    """Empty where they have no names."""
    try:
        return {grp.getgrgid(number).gr_name for number in {os.getegid(), *os.getgroups()}}
    except KeyError:
        return set()


def _of_account(cluster: ClusterFacts, account: str, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    """DenyAccounts counts for nothing where AllowAccounts is set, and from 23.02 on both do where no associations are
    enforced (part_policy_valid_acct in src/slurmctld/partition_mgr.c)."""
    if cluster.release >= (23, 2) and not cluster.enforces("associations"):
        return
    key, allowed, denied = "resources.account", limits.get("AllowAccounts", "ALL"), limits.get("DenyAccounts", "")
    if allowed not in ALL and not cluster.knows_me:
        why = STRANGER if cluster.is_stranger else UNKNOWN
        yield Finding("error", "resources.partition", f"{name} has AllowAccounts={allowed}", why, "Name another.")
    elif account and allowed not in ALL and account not in allowed.split(","):
        yield Finding("error", key, f"{account} may not use {name}: AllowAccounts={allowed}", REFUSED, NAMED)
    elif account and allowed in ALL and account in denied.split(",") and _is_enforced(cluster):
        what = f"{account} may not use {name}: DenyAccounts={denied}"
        yield Finding("error", key, what, REFUSED, "Name another, or another partition.")


def _is_enforced(cluster: ClusterFacts) -> bool:
    """Under NO, 22.05 asks nothing of a job whose account it does not know."""
    return cluster.knows_me or cluster.settings.get("EnforcePartLimits") != "NO"


def _of_qos(cluster: ClusterFacts, qos: str, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    key, allowed, denied = "resources.qos", limits.get("AllowQos", "ALL"), limits.get("DenyQos", "")
    if allowed not in ALL and cluster.is_stranger:
        yield Finding("error", "resources.partition", f"{name} has AllowQos={allowed}", STRANGER, "Name another.")
    elif not cluster.has_accounting:
        return  # 22.05 starts the job: it knows no QOS
    elif qos and allowed not in ALL and qos not in allowed.split(","):
        yield Finding("error", key, f"{qos} may not use {name}: AllowQos={allowed}", REFUSED, NAMED)
    elif qos and allowed in ALL and qos in denied.split(",") and cluster.knows_me:
        what = f"{qos} may not use {name}: DenyQos={denied}"
        yield Finding("error", key, what, REFUSED, "Name another, or another partition.")


def accounting_access(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Whether the account and the QOS are mine."""
    resources = subject.config.resources
    mine = list(dict.fromkeys(each.account for each in cluster.associations))
    if resources.account and mine and resources.account not in mine and cluster.enforces("associations"):
        what = f"{resources.account} is none of your accounts: {', '.join(mine)}"
        yield Finding("error", "resources.account", what, REFUSED, did_you_mean(resources.account, mine, NAMED))
    qos = {qos for each in cluster.associations if resources.account in (None, each.account) for qos in each.qos}
    if resources.qos and qos and resources.qos not in qos and cluster.enforces("qos"):
        what = f"{resources.qos} is none that you may use: {', '.join(sorted(qos))}"
        yield Finding("error", "resources.qos", what, REFUSED, NAMED)
