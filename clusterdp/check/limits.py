"""What the scheduler would refuse, or leave in the queue for ever: limits of partition, QOS and account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterdp.check.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.nodes import node_findings
from clusterdp.check.subject import Subject
from clusterdp.slurm.quantities import clock_of, megabytes_of, seconds_of
from clusterdp.wording import counted, did_you_mean, duration


def limit_findings(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if not cluster.partitions:
        return
    yield from _of_partitions(subject, cluster)
    yield from _of_account(subject, cluster)
    yield from _of_qos(subject, cluster)
    yield from _of_arrays(subject, cluster)


def _of_partitions(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Of several partitions, a job takes the one that it fits: only where none is left, that is an error."""
    names = cluster.asked(subject.config.resources.partition)
    each = {name: [*_of_partition(subject, cluster, name)] for name in names}
    fits = [name for name, found in each.items() if not any(finding.level == "error" for finding in found)]
    shown = set(fits) or set(each)
    for name in names:
        if name in shown:
            yield from each[name]


def _of_partition(subject: Subject, cluster: ClusterFacts, name: str) -> Iterator[Finding]:
    key = "resources.partition"
    limits = cluster.partitions.get(name)
    if limits is None:
        known = sorted(cluster.partitions)
        remedy = did_you_mean(name, known, f"There are: {', '.join(known)}.")
        yield Finding("error", key, f"there is no partition {name}", "the job is refused", remedy)
        return
    state = limits.get("State", "UP")
    if state in ("INACTIVE", "DRAIN"):
        why = f"{name} is {state}: it takes no new jobs"
        yield Finding("error", key, why, "the job is refused", "Name another, or wait until it is up.")
    elif state != "UP":
        yield Finding("warning", key, f"{name} is {state}", "the job waits until it is up", "Name another, or wait.")
    yield from _of_time(subject, name, limits)
    yield from _of_size(subject, name, limits)
    yield from node_findings(subject, cluster, name)


def _of_time(subject: Subject, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    most, asked, key = seconds_of(limits.get("MaxTime", "")), subject.time_s, "resources.time"
    default = seconds_of(limits.get("DefaultTime", ""))
    if most is not None and asked is not None and asked > most:
        what = f"{subject.config.resources.time} is more than {name} allows: {limits['MaxTime']}"
        yield Finding("error", key, what, NEVER, f'Write "{clock_of(most)}" or less.')
    elif asked is None and subject.config.resources.time is None and default is not None and default != most:
        what = f"is not set, and {name} then gives {limits['DefaultTime']}"
        longest = f", where {limits['MaxTime']} is allowed" if most else ""
        yield Finding(
            "hint", key, what, f"the run is stopped every {duration(default)}{longest}", "Set resources.time."
        )


NEVER = "the job is refused, or waits for ever (EnforcePartLimits decides)"


def _of_size(subject: Subject, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    resources = subject.config.resources
    most, least = limits.get("MaxNodes", ""), limits.get("MinNodes", "")
    if most.isdecimal() and resources.nodes > int(most):
        what = f"{resources.nodes} are more than {name} allows: {most}"
        yield Finding("error", "resources.nodes", what, NEVER, f"Write {most} or less.")
    if least.isdecimal() and resources.nodes < int(least):
        what = f"{counted(resources.nodes, 'node')} is less than {name} asks for: {least}"
        yield Finding("error", "resources.nodes", what, NEVER, f"Write {least} or more.")
    cpus = limits.get("MaxCPUsPerNode", "")
    if cpus.isdecimal() and subject.cpus_per_node > int(cpus):
        what = f"{subject.cpus_per_node} CPUs on a node are more than {name} allows: {cpus}"
        remedy = f"Write {max(1, int(cpus) // subject.spec.ranks_per_node)} or less."
        yield Finding("error", "resources.cpus_per_task", what, NEVER, remedy)
    memory, asked = megabytes_of(limits.get("MaxMemPerNode", "")), megabytes_of(resources.mem or "")
    if memory and asked and asked > memory:
        what = f"{resources.mem} is more than {name} allows on a node: {limits['MaxMemPerNode']} MB"
        yield Finding("error", "resources.mem", what, NEVER, f"Write {memory:.0f}M or less.")
    for key, allowed in (("account", "AllowAccounts"), ("qos", "AllowQos")):
        value, names = getattr(resources, key), limits.get(allowed, "ALL")
        if value and names not in ("ALL", "(null)") and value not in names.split(","):
            what = f"{value} may not use {name}: {allowed}={names}"
            yield Finding("error", f"resources.{key}", what, "the job is refused", "Name one of those.")


def _of_account(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    account = subject.config.resources.account
    mine = list(dict.fromkeys(name for name, _ in cluster.accounts))
    if account and mine and account not in mine and cluster.enforces("associations"):
        what = f"{account} is none of your accounts: {', '.join(mine)}"
        remedy = did_you_mean(account, mine, "Name one of those.")
        yield Finding("error", "resources.account", what, "the job is refused", remedy)


def _of_qos(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    resources, key = subject.config.resources, "resources.qos"
    mine = {each for account, listed in cluster.accounts if resources.account in (None, account)
            for each in listed.split(",") if each}  # fmt: skip
    if resources.qos and mine and resources.qos not in mine and cluster.enforces("qos"):
        what = f"{resources.qos} is none that you may use: {', '.join(sorted(mine))}"
        yield Finding("error", key, what, "the job is refused", "Name one of those.")
    if cluster.enforces("limits"):
        for name in cluster.qos_of(resources):
            yield from _of_qos_limits(subject, name, cluster.qos.get(name, {}))


def _of_qos_limits(subject: Subject, qos: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    resources = subject.config.resources
    wall = seconds_of(limits.get("MaxWall", ""))
    if wall is not None and subject.time_s is not None and subject.time_s > wall:
        what = f"{resources.time} is more than the QOS {qos} allows: {limits['MaxWall']}"
        yield Finding("error", "resources.time", what, WAITS, f'Write "{clock_of(wall)}" or less.')
    most = dict(each.split("=", 1) for each in limits.get("MaxTRES", "").split(",") if "=" in each)
    asked = {
        "node": ("resources.nodes", resources.nodes),
        "cpu": ("resources.cpus_per_task", resources.nodes * subject.cpus_per_node),
        "gres/gpu": ("resources.gpus_per_node", resources.nodes * subject.gpus_per_node),
    }
    for tres, (name, count) in asked.items():
        if most.get(tres, "").isdecimal() and count > int(most[tres]):
            what = f"{count} ({tres}, of all nodes) are more than the QOS {qos} allows: {most[tres]}"
            yield Finding("error", name, what, WAITS, "Ask for less, or name another QOS.")
    submit = limits.get("MaxSubmitPU", "")
    if submit.isdecimal() and subject.elements > int(submit):
        what = f"{subject.elements} elements are more jobs than the QOS {qos} allows a user: {submit}"
        yield Finding("error", "sweep", what, "the array is refused", f"Sweep over {submit} or fewer at a time.")


WAITS = "the job waits for ever, or is refused (DenyOnLimit)"


def _of_arrays(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if subject.elements == 1:
        return
    most = cluster.number("MaxJobCount")
    if most is not None and subject.elements > most:
        what = f"{subject.elements} elements are more jobs than this cluster holds: MaxJobCount is {most}"
        yield Finding("error", "sweep", what, "a part of the sweep is refused", f"Sweep over fewer than {most}.")
