"""Checks the limits that Slurm's accounting sets: those of the partition's QOS, the job's QOS and the accounts."""

from __future__ import annotations

import grp
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from clusterdp.check.cluster.cluster_facts import ALL, ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.quantities import clock_of, megabytes_of, seconds_of
from clusterdp.wording import counted, did_you_mean

WAITS = "the job waits for ever"
ANOTHER = "Name another account or QOS."
# Limit on a resource of the whole job -> words for the jobs whose resources are added up
MOST = {
    "MaxTRES": "",
    "MaxTRESPU": " for each user",
    "MaxTRESPA": " for each account",
    "GrpTRES": " for all jobs together",
}
REFUSED = "the job is refused"
UNKNOWN = "without accounting Slurm knows no account, and lets no job in"
STRANGER = "accounting has no association of yours, so that Slurm knows neither account nor QOS, and lets no job in"
NAMED = "Name one of those."


def accounting_findings(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    if cluster.enforces("limits"):
        limits = Limits(subject, cluster, partition)
        yield from _of_time(subject, limits)
        yield from _of_size(subject, limits)
        yield from _of_number(subject, limits)
        yield from _of_minutes(subject, limits)


@dataclass(frozen=True)
class Size:
    """The amount of a TRES (Slurm's word for a resource) that a job asks for. `words`: `16 CPUs`."""

    key: str
    count: float
    words: str


@dataclass(frozen=True)
class Limits:
    """The limits of accounting for the job in one partition."""

    subject: Subject
    cluster: ClusterFacts
    partition: str

    def of(self, kind: str, tres: str = "") -> list[tuple[str, str]]:
        """Returns (whose, value) of a limit such as `MaxWall`, or `node` in `MaxTRES`. The first QOS that has this
        limit decides. If no QOS has the limit, the limits of all accounts hold.
        https://slurm.schedmd.com/resource_limits.html#hierarchy"""
        resources, cluster = self.subject.config.resources, self.cluster
        named = [(f"the QOS {name}", cluster.qos.get(name, {})) for name in cluster.qos_of(resources, self.partition)]
        if of_qos := _with_value(named, kind, tres):
            return of_qos[:1]
        named = [(f"the account {name}", limits) for name, limits in cluster.accounts.items()]
        if association := cluster.association_of(resources, self.partition):
            named.append((f"your account {association.account}", association.limits))
        return _with_value(named, kind, tres)

    @property
    def outcome(self) -> str:
        """What happens to a job beyond a limit: Slurm refuses the job, or the job waits for ever."""
        denies = self.cluster.has_flag(self.subject.config.resources, self.partition, "DenyOnLimit")
        return "the job is refused (DenyOnLimit)" if denies else WAITS

    def sizes(self, nodes: int) -> dict[str, Size]:
        """Returns the amount of each TRES that the job takes on `nodes` nodes. Memory is included only if the job asks
        for memory."""
        subject = self.subject
        gpus, megabytes = nodes * subject.gpus_per_node, nodes * subject.memory_mb
        found = {
            "node": Size("resources.nodes", nodes, counted(nodes, "node")),
            "cpu": self._cpus(nodes),
            "gres/gpu": Size(subject.gpu_key, gpus, counted(gpus, "GPU")),
        }
        if subject.gpu_type:
            words = counted(gpus, f"{subject.gpu_type} GPU")
            found[f"gres/gpu:{subject.gpu_type}"] = Size(subject.gpu_key, gpus, words)
        if megabytes:
            found["mem"] = Size(subject.memory_key, megabytes, f"{megabytes:.0f}M of memory")
        return found

    def _cpus(self, nodes: int) -> Size:
        """Returns the requested CPUs, or all CPUs of the smallest nodes if no other job may run on the same nodes."""
        is_exclusive = self.subject.config.resources.exclusive
        asked, whole = nodes * self.subject.cpus_per_node, 0
        partition = self.cluster.partitions.get(self.partition, {})
        # since 26.05, OverSubscribe=EXCLUSIVE is shown as Exclusive=NODE
        if is_exclusive or "EXCLUSIVE" in partition.get("OverSubscribe", "") or partition.get("Exclusive") == "NODE":
            there = (group.cpus for group in self.cluster.groups if group.partition == self.partition)
            whole = nodes * min(there, default=0)
        if whole <= asked:
            return Size("resources.cpus_per_task", asked, counted(asked, "CPU"))
        key = "resources.exclusive" if is_exclusive else "resources.partition"
        return Size(key, whole, f"{counted(whole, 'CPU')}, because the nodes are for this job alone")


def _with_value(holders: list[tuple[str, Mapping[str, str]]], kind: str, tres: str) -> list[tuple[str, str]]:
    said = [(whose, limits.get(kind, "")) for whose, limits in holders]
    if tres:  # `cpu=8,node=2`
        said = [(whose, dict(re.findall(r"([^=,]+)=([^,]*)", text)).get(tres, "")) for whose, text in said]
    return [(whose, value) for whose, value in said if value]


def _of_time(subject: Subject, limits: Limits) -> Iterator[Finding]:
    for whose, said in limits.of("MaxWall"):
        wall = seconds_of(said)
        if wall is not None and subject.time_s is not None and subject.time_s > wall:
            what = f"{subject.config.resources.time} is more than {whose} allows: {said}"
            yield Finding("error", "resources.time", what, limits.outcome, f'Write "{clock_of(wall)}" or less.')


def _of_size(subject: Subject, limits: Limits) -> Iterator[Finding]:
    less = "Ask for less, or name another QOS or account."
    for tres, size in limits.sizes(subject.config.resources.job_nodes).items():
        for whose, said, whom in ((*each, whom) for kind, whom in MOST.items() for each in limits.of(kind, tres)):
            if size.count > _count(said):
                what = f"{size.words}, and {whose} allows {said}{whom}"
                yield Finding("error", size.key, what, limits.outcome, less)
        for whose, said in limits.of("MinTRES", tres):
            if size.count < _count(said):
                what = f"{size.words}, and {whose} asks for {said} or more"
                yield Finding("error", size.key, what, limits.outcome, "Ask for more, or name another QOS.")
    for tres, size in limits.sizes(1).items():
        for whose, said in limits.of("MaxTRESPerNode", tres):
            if size.count > _count(said):
                what = f"{size.words} on a node, and {whose} allows {said}"
                yield Finding("error", size.key, what, limits.outcome, less)


def _count(said: str) -> float:
    """Returns a limit as a number, memory in megabytes. Text that is not a number becomes NaN, which limits nothing."""
    amount = megabytes_of(said)
    return math.nan if amount is None else amount


def _of_number(subject: Subject, limits: Limits) -> Iterator[Finding]:
    for whose, most in limits.of("MaxSubmitPU") or limits.of("MaxSubmit"):
        if most.isdecimal() and subject.elements > int(most):
            key, jobs, remedy = "resources.account", "1 job is", ANOTHER
            if subject.elements > 1:
                key, jobs = "sweep", f"{subject.elements} elements are"
                remedy = f"Sweep over {most} or fewer at a time."
            yield Finding("error", key, f"{jobs} more than {whose} allows a user: {most}", "sbatch refuses it", remedy)
    for kind in ("MaxJobsPU", "MaxJobsPA", "MaxJobs", "GrpJobs"):
        for whose in (whose for whose, most in limits.of(kind) if most == "0"):
            what = f"{whose} allows no job to run: {kind}=0"
            yield Finding("error", "resources.account", what, WAITS, ANOTHER)


def _of_minutes(subject: Subject, limits: Limits) -> Iterator[Finding]:
    """Yields a finding if the job's resources multiplied by its time exceed a limit. For a budget of all jobs, the part
    that is used up is ignored. With the setting `safe`, Slurm compares a single job with the budget
    (_validate_tres_usage_limits in acct_policy.c).
    """
    if subject.time_s is None:
        return
    safe = limits.cluster.enforces("safe")
    for tres, size in limits.sizes(subject.config.resources.job_nodes).items():
        minutes = size.count * subject.time_s / 60
        of_job = limits.of("MaxTRESMins", tres)
        of_all = [each for each in limits.of("GrpTRESMins", tres) if safe or (each[1] == "0" and minutes)]
        for whose, said in of_job + of_all:
            if minutes > _count(said):
                what = f"{size.words} for {subject.config.resources.time}, and {whose} allows {said} {tres} minutes"
                yield Finding("error", "resources.time", what, limits.outcome, "Ask for less time, or for less.")


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
    """Returns the names of the user's groups; empty if a group has no name."""
    try:
        return {grp.getgrgid(number).gr_name for number in {os.getegid(), *os.getgroups()}}
    except KeyError:
        return set()


def _of_account(cluster: ClusterFacts, account: str, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    """Yields findings about a partition's AllowAccounts and DenyAccounts. Slurm ignores DenyAccounts if AllowAccounts
    is set. Since 23.02 Slurm ignores both if associations are not enforced (part_policy_valid_acct in
    src/slurmctld/partition_mgr.c)."""
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
    """Returns whether Slurm checks the account: with EnforcePartLimits=NO, Slurm 22.05 does not check an account that
    it does not know."""
    return cluster.knows_me or cluster.settings.get("EnforcePartLimits") != "NO"


def _of_qos(cluster: ClusterFacts, qos: str, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    key, allowed, denied = "resources.qos", limits.get("AllowQos", "ALL"), limits.get("DenyQos", "")
    if allowed not in ALL and cluster.is_stranger:
        yield Finding("error", "resources.partition", f"{name} has AllowQos={allowed}", STRANGER, "Name another.")
    elif not cluster.has_accounting:
        return  # Slurm 22.05 starts the job, because the job has no QOS
    elif qos and allowed not in ALL and qos not in allowed.split(","):
        yield Finding("error", key, f"{qos} may not use {name}: AllowQos={allowed}", REFUSED, NAMED)
    elif qos and allowed in ALL and qos in denied.split(",") and cluster.knows_me:
        what = f"{qos} may not use {name}: DenyQos={denied}"
        yield Finding("error", key, what, REFUSED, "Name another, or another partition.")


def accounting_access(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields findings for an account or a QOS that the user may not use."""
    resources = subject.config.resources
    mine = list(dict.fromkeys(each.account for each in cluster.associations))
    if resources.account and mine and resources.account not in mine and cluster.enforces("associations"):
        what = f"{resources.account} is none of your accounts: {', '.join(mine)}"
        yield Finding("error", "resources.account", what, REFUSED, did_you_mean(resources.account, mine, NAMED))
    qos = {qos for each in cluster.associations if resources.account in (None, each.account) for qos in each.qos}
    if resources.qos and qos and resources.qos not in qos and cluster.enforces("qos"):
        what = f"{resources.qos} is none that you may use: {', '.join(sorted(qos))}"
        yield Finding("error", "resources.qos", what, REFUSED, NAMED)
