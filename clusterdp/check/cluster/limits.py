"""Checks the limits of partitions: yields findings for jobs that Slurm refuses, or leaves in the queue for ever."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from clusterdp.check.cluster.accounting import accounting_access, accounting_findings, partition_access
from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.cluster.nodes import node_findings
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.quantities import clock_of, megabytes_of, seconds_of
from clusterdp.wording import counted, did_you_mean, duration


def limit_findings(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if not cluster.partitions:
        return
    yield from _of_partitions(subject, cluster)
    yield from accounting_access(subject, cluster)
    yield from _of_arrays(subject, cluster)


def _of_partitions(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields findings for the job's partitions. Slurm uses any partition that fits: therefore errors count only if no
    partition fits. But every partition must exist, and with EnforcePartLimits=ALL the job must respect the limits of
    every partition."""
    names = cluster.asked(subject.config.resources.partition)
    if not names:
        yield from _of_no_partition(subject, cluster)
    missing = [name for name in names if name not in cluster.partitions]
    for name in missing:
        known = sorted(cluster.partitions)
        remedy = did_you_mean(name, known, f"There are: {', '.join(known)}.")
        what = f"there is no partition {name or 'with an empty name'}"
        yield Finding("error", "resources.partition", what, "the job is refused", remedy)
    each = {name: [*_of_partition(subject, cluster, name)] for name in names if name not in missing}
    fits = [name for name, found in each.items() if not any(finding.level == "error" for finding in found)]
    shown = set(fits) or set(each)
    of_all = cluster.settings.get("EnforcePartLimits") == "ALL"
    for name in each:
        if name in shown:
            yield from each[name]
        elif of_all and cluster.partitions[name].get("State") not in CLOSED:
            limits = _of_its_limits(subject, cluster, name, cluster.partitions[name])
            why = "the job is refused: EnforcePartLimits=ALL asks for what each of its partitions allows"
            yield from (replace(found, why=why) for found in limits if found.level == "error")


def _of_no_partition(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    yield from accounting_findings(subject, cluster, "")
    resources = subject.config.resources
    if not resources.partition and "partition" not in resources.extra and not cluster.has_plugins:
        what = "is not set, and this cluster has no default partition"
        remedy = f"Name one: {', '.join(sorted(cluster.partitions))}."
        yield Finding("error", "resources.partition", what, "the job is refused", remedy)


def _of_partition(subject: Subject, cluster: ClusterFacts, name: str) -> Iterator[Finding]:
    key, limits = "resources.partition", cluster.partitions[name]
    state = limits.get("State", "UP")
    if state in CLOSED:
        why = f"{name} is {state}: it takes no new jobs"
        yield Finding("error", key, why, "the job is refused", "Name another, or wait until it is up.")
    elif state != "UP":
        yield Finding("warning", key, f"{name} is {state}", "the job waits until it is up", "Name another, or wait.")
    yield from _of_its_limits(subject, cluster, name, limits)
    yield from _of_cpus(subject, name, limits)
    yield from _of_memory_per_cpu(subject, cluster, name, limits)
    yield from accounting_findings(subject, cluster, name)
    yield from node_findings(subject, cluster, name)


def _of_its_limits(subject: Subject, cluster: ClusterFacts, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    """Yields findings about those limits of a partition that EnforcePartLimits enforces."""
    yield from partition_access(subject, cluster, name, limits)
    yield from _of_time(subject, cluster, name, limits)
    yield from _of_size(subject, cluster, name, limits)


def _of_time(subject: Subject, cluster: ClusterFacts, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    most, asked, key = seconds_of(limits.get("MaxTime", "")), subject.time_s, "resources.time"
    default = seconds_of(limits.get("DefaultTime", ""))
    if cluster.has_flag(subject.config.resources, name, "PartitionTimeLimit"):
        most = None
    if most is not None and asked is not None and asked > most:
        what = f"{subject.config.resources.time} is more than {name} allows: {limits['MaxTime']}"
        yield Finding("error", key, what, NEVER, f'Write "{clock_of(most)}" or less.')
    elif subject.config.resources.time is None and default is not None and default != most:
        what = f"is not set, and {name} then gives {limits['DefaultTime']}"
        longest = f", where {limits['MaxTime']} is allowed" if most else ""
        yield Finding(
            "hint", key, what, f"the run is stopped every {duration(default)}{longest}", "Set resources.time."
        )


CLOSED = ("INACTIVE", "DRAIN")  # a partition in such a state takes no new jobs, and Slurm skips it in a list
NEVER = "the job is refused, or waits for ever (EnforcePartLimits decides)"


def _of_size(subject: Subject, cluster: ClusterFacts, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    resources = subject.config.resources
    most, least = (
        "" if cluster.has_flag(resources, name, f"Partition{key}") else limits.get(key, "")
        for key in ("MaxNodes", "MinNodes")
    )
    if most.isdecimal() and resources.job_nodes > int(most):
        what = f"{subject.nodes_words} asked for, and {name} allows {most} at most"
        yield Finding("error", "resources.nodes", what, NEVER, f"Write {most} or less.")
    if least.isdecimal() and resources.most_nodes + resources.spare_nodes < int(least):
        what = f"{subject.nodes_words} asked for, and {name} takes no job with less than {least}"
        yield Finding("error", "resources.nodes", what, NEVER, f"Write {least} or more.")
    memory = megabytes_of(limits.get("MaxMemPerNode", ""))
    whole = [group.memory_mb for group in cluster.groups if group.partition == name and group.nodes]
    asked = max(whole, default=0) if subject.asks_all_memory else subject.memory_mb
    if memory and asked > memory:
        words = f"{resources.mem} is all memory of a node, which" if subject.asks_all_memory else subject.memory_words
        what = f"{words} is more than {name} allows on a node: {limits['MaxMemPerNode']} MB"
        remedy = f"Ask for {memory:.0f}M a node or less."
        yield Finding("error", subject.memory_key, what, NEVER, remedy)


def _of_cpus(subject: Subject, name: str, limits: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a finding about MaxCPUsPerNode. EnforcePartLimits does not apply to this limit."""
    cpus = limits.get("MaxCPUsPerNode", "")
    if cpus.isdecimal() and subject.cpus_per_node > int(cpus):
        what = f"{subject.cpus_per_node} CPUs on a node are more than {name} allows: {cpus}"
        remedy = f"Write {max(1, int(cpus) // subject.spec.ranks_per_node)} or less."
        yield Finding("error", "resources.cpus_per_task", what, NEVER, remedy)


def _of_memory_per_cpu(
    subject: Subject, cluster: ClusterFacts, name: str, limits: Mapping[str, str]
) -> Iterator[Finding]:
    """Yields a finding about MaxMemPerCPU. Slurm gives a job as many CPUs as its memory takes, even if the job asks for
    fewer. EnforcePartLimits does not apply to this limit."""
    own = limits.get("MaxMemPerCPU", limits.get("MaxMemPerNode", "UNLIMITED"))
    said = cluster.settings.get("MaxMemPerCPU", "") if own == "UNLIMITED" else limits.get("MaxMemPerCPU", "")
    most = megabytes_of(said)
    taken, asked = math.ceil(subject.memory_mb / most) if most else 0, subject.cpus_per_node
    if not most or taken <= asked:
        return
    there = max((group.cpus for group in cluster.groups if group.partition == name), default=taken)
    what = f"{subject.memory_words} takes {counted(taken, 'CPU')} on a node: {name} allows {said} MB for each"
    if taken > there:
        remedy = f"Ask for {there * most:.0f}M a node or less."
        yield Finding("error", subject.memory_key, what, f"the job is refused: a node has {there}", remedy)
    else:
        remedy = f"Ask for {asked * most:.0f}M a node, or for the CPUs as well."
        yield Finding("hint", subject.memory_key, what, f"Slurm counts them all, and {asked} would be used", remedy)


def _of_arrays(subject: Subject, cluster: ClusterFacts) -> Iterator[Finding]:
    if subject.elements == 1:
        return
    most = cluster.number("MaxJobCount")
    if most is not None and subject.elements > most:
        what = f"{subject.elements} elements are more jobs than this cluster holds: MaxJobCount is {most}"
        yield Finding("error", "sweep", what, "a part of the sweep is refused", f"Sweep over fewer than {most}.")
