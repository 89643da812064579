"""node_findings(): checks whether a partition has enough nodes for the request, and how many of these nodes are up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterdp.check.cluster.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.hostlist import hosts_of
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.wording import counted

AWAY = re.compile(r"(down|drain|drng|fail|inval|maint|unk)|.*\*")  # sinfo's states of nodes that take no job


def node_findings(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    groups = [group for group in cluster.groups if group.partition == partition]
    wanted = subject.config.resources.job_nodes
    if groups and not _count(groups):
        yield Finding("error", "resources.partition", f"{partition} has no nodes", NEVER, "Name another.")
        return
    yield from _of_names(subject, partition, hosts_of(cluster.partitions.get(partition, {}).get("Nodes", "")))
    if not groups:
        return
    missed = [[*misfits(subject, group, cluster)] for group in groups]
    fitting = [group for group, found in zip(groups, missed, strict=True) if not found]
    there, up = _count(fitting), _count([group for group in fitting if not AWAY.match(group.state)])
    if there >= wanted:
        if up < wanted:
            away = ", ".join(sorted({group.state for group in fitting if AWAY.match(group.state)}))
            what = f"{up} of the {there} nodes in {partition} that fit can be used now (others are {away})"
            why = f"the job needs {wanted}, and waits until more are up"
            yield Finding("warning", "resources.nodes", what, why, f"Write {up}, or wait." if up else "Wait.")
        return
    if fitting:
        what = f"{subject.nodes_words} asked for, and {partition} has {there} that fit"
        remedy = f"Write {there}, or ask for less on each node."
        yield Finding("error", "resources.nodes", what, NEVER, remedy)
        return
    by_all = set.intersection(*({each.key for each in found} for found in missed))
    nearest = min(
        (each for found in missed for each in found if each.key in by_all or not by_all), key=lambda each: each.by
    )
    has = "has that" if by_all else "has that beside all else that is asked for"
    yield Finding("error", nearest.key, f"{nearest.asked}: no node in {partition} {has}", NEVER, nearest.remedy)


def _of_names(subject: Subject, partition: str, hosts: set[str]) -> Iterator[Finding]:
    """Yields findings about the keys nodelist and exclude. `hosts` has the partition's hosts, and is empty if they are
    unknown."""
    resources = subject.config.resources
    listed = hosts_of(resources.nodelist or "")
    if hosts and (others := sorted(listed - hosts)):
        what = f"{', '.join(others[:5])} of the list are not in {partition}"
        yield Finding("error", "resources.nodelist", what, NEVER, "Name nodes of that partition.")
    left = len(hosts - hosts_of(resources.exclude or ""))
    if left < min(resources.job_nodes, len(hosts)):
        what = f"leaves {counted(left, 'node')} of {partition}, and {subject.nodes_words} are asked for"
        yield Finding("error", "resources.exclude", what, NEVER, "Exclude fewer, or ask for fewer nodes.")


def states_away(subject: Subject, cluster: ClusterFacts) -> str:
    """Returns the states of nodes that take no job now, and without which the job may not fit: `down*, reserved`. Empty
    if enough others fit, and each of the nodes has a twin among the others."""
    found = set()
    for partition in cluster.asked(subject.config.resources.partition):
        groups = [group for group in cluster.groups if group.partition == partition]
        away = [each for each in groups if AWAY.match(each.state) or each.state.startswith("reserved")]
        others = [each for each in groups if each not in away]
        twins = {each._replace(state="", nodes=0) for each in others}
        fitting = _count([each for each in others if not [*misfits(subject, each, cluster)]])
        is_enough = fitting >= subject.config.resources.job_nodes and not subject.config.resources.nodelist
        found |= {each.state for each in away if not is_enough or each._replace(state="", nodes=0) not in twins}
    return ", ".join(sorted(found))


NEVER = "the job is refused, or waits for ever"


@dataclass(frozen=True)
class Misfit:
    """A request that a node does not meet."""

    by: float  # how much too large the request is, for comparing misfits
    key: str
    asked: str
    remedy: str


def misfits(subject: Subject, group: NodeGroup, cluster: ClusterFacts) -> Iterator[Misfit]:
    """Yields the requests of the job that a node of the group does not meet."""
    resources, ranks = subject.config.resources, subject.spec.ranks_per_node
    yield from _of_gpus(subject, group)
    if subject.cpus_per_node > group.cpus:
        asked = f"{ranks} x {resources.cpus_per_task} = {subject.cpus_per_node} CPUs on a node"
        most = group.cpus // ranks
        remedy = f"Write {most} or less (a node has {group.cpus})." if most else f"A node has {group.cpus} CPUs."
        yield Misfit(subject.cpus_per_node - group.cpus, "resources.cpus_per_task", asked, remedy)
    memory = subject.memory_mb if cluster.counts_memory else subject.memory_of_unit_mb
    if memory > group.memory_mb:
        remedy = f"Ask for {group.memory_mb}M a node or less."
        yield Misfit(memory - group.memory_mb, subject.memory_key, f"{subject.memory_words} on a node", remedy)
    wanted = resources.constraint or ""
    features = wanted.split("&") if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", wanted) else []
    if missing := {*features} - {*group.features}:
        asked = "the feature" if len(features) == 1 else "all of the features"
        remedy = f"A node there has: {', '.join(group.features) or 'none'}."
        yield Misfit(len(missing), "resources.constraint", f"{asked} {wanted}", remedy)


def _of_gpus(subject: Subject, group: NodeGroup) -> Iterator[Misfit]:
    """Yields a misfit if a node has too few GPUs of the requested type. If the job asks for no type, all GPUs count."""
    gpus, kind = subject.gpus_per_node, subject.gpu_type
    types = dict(group.gpus_by_type)
    if gpus and kind and types and kind not in types:
        yield Misfit(1, subject.gpu_key, f"GPUs of type {kind}", f"Those there are of type {', '.join(types)}.")
        return
    there, of_type = (types[kind], f" of type {kind}") if kind in types else (group.gpus, "")
    if gpus > there:
        remedy = f"Write {there} or less." if there else "Name a partition that has GPUs."
        yield Misfit(gpus - there, subject.gpu_key, f"{counted(gpus, 'GPU')}{of_type} on a node", remedy)


def _count(groups: list[NodeGroup]) -> int:
    return sum(group.nodes for group in groups)
