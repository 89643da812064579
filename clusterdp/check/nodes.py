"""Whether a partition has nodes of the shape that the config asks for, and how many of them are up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterdp.check.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.hostlist import HostlistError, expand
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.wording import counted

AWAY = re.compile(r"(down|drain|drng|fail|inval|maint|unk)|.*\*")  # states of sinfo in which a node takes no job


def node_findings(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    groups = [group for group in cluster.groups if group.partition == partition]
    wanted = subject.config.resources.nodes
    yield from _of_names(subject, partition, hosts_of(cluster.partitions.get(partition, {}).get("Nodes", "")))
    if not groups:
        return
    fitting = [group for group in groups if not misfit(subject, group)]
    there, up = _count(fitting), _count([group for group in fitting if not AWAY.match(group.state)])
    if there >= wanted:
        if up < wanted:
            away = ", ".join(sorted({group.state for group in fitting if AWAY.match(group.state)}))
            what = f"{up} of the {there} nodes in {partition} that fit can be used now (others are {away})"
            why = f"the job needs {wanted}, and waits until more are up"
            yield Finding("warning", "resources.nodes", what, why, f"Write {up}, or wait." if up else "Wait.")
        return
    if fitting:
        what = f"{counted(wanted, 'node')} asked for, and {partition} has {there} that fit"
        remedy = f"Write {there}, or ask for less on each node."
        yield Finding("error", "resources.nodes", what, NEVER, remedy)
        return
    nearest = min(filter(None, (misfit(subject, group) for group in groups)), key=lambda each: each.by)
    yield Finding("error", nearest.key, f"{nearest.asked}: no node in {partition} has that", NEVER, nearest.remedy)


def _of_names(subject: Subject, partition: str, hosts: set[str]) -> Iterator[Finding]:
    """hosts: of the partition; empty if they are not known."""
    resources = subject.config.resources
    listed = hosts_of(resources.nodelist or "")
    if hosts and (others := sorted(listed - hosts)):
        what = f"{', '.join(others[:5])} of the list are not in {partition}"
        yield Finding("error", "resources.nodelist", what, NEVER, "Name nodes of that partition.")
    left = len(hosts - hosts_of(resources.exclude or ""))
    if left < min(resources.nodes, len(hosts)):
        what = f"leaves {counted(left, 'node')} of {partition}, and {resources.nodes} are asked for"
        yield Finding("error", "resources.exclude", what, NEVER, "Exclude fewer, or ask for fewer nodes.")


def hosts_of(expression: str) -> set[str]:
    """Empty for a file, and for what is no host list."""
    try:
        return set(expand(expression)) if expression != "(null)" and "/" not in expression else set()
    except HostlistError:
        return set()


NEVER = "the job is refused, or waits for ever"


@dataclass(frozen=True)
class Misfit:
    """What is asked of a node that it does not have; `by` how much it is too large."""

    by: float
    key: str
    asked: str
    remedy: str


def misfit(subject: Subject, group: NodeGroup) -> Misfit | None:
    """None if a node of the group has all that is asked of a node."""
    resources, ranks = subject.config.resources, subject.spec.ranks_per_node
    memory = subject.memory_mb
    if found := _of_gpus(subject, group):
        return found
    if subject.cpus_per_node > group.cpus:
        asked = f"{ranks} x {resources.cpus_per_task} = {subject.cpus_per_node} CPUs on a node"
        most = group.cpus // ranks
        remedy = f"Write {most} or less (a node has {group.cpus})." if most else f"A node has {group.cpus} CPUs."
        return Misfit(subject.cpus_per_node - group.cpus, "resources.cpus_per_task", asked, remedy)
    if memory > group.memory_mb:
        remedy = f"Ask for {group.memory_mb}M a node or less."
        return Misfit(memory - group.memory_mb, subject.memory_key, f"{subject.memory_words} on a node", remedy)
    wanted = resources.constraint or ""
    features = wanted.split("&") if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", wanted) else []
    for feature in features:
        if feature not in group.features:
            remedy = f"A node there has: {', '.join(group.features) or 'none'}."
            return Misfit(1, "resources.constraint", f"the feature {feature}", remedy)
    return None


def _of_gpus(subject: Subject, group: NodeGroup) -> Misfit | None:
    """Those of the type that is asked for, where one is; of all types together, where none is."""
    gpus, kind = subject.gpus_per_node, subject.gpu_type
    types = dict(group.gpus_by_type)
    if gpus and kind and types and kind not in types:
        remedy = f"Those there are of type {', '.join(types)}."
        return Misfit(1, subject.gpu_key, f"GPUs of type {kind}", remedy)
    there, of_type = (types[kind], f" of type {kind}") if kind in types else (group.gpus, "")
    if gpus <= there:
        return None
    remedy = f"Write {there} or less." if there else "Name a partition that has GPUs."
    return Misfit(gpus - there, subject.gpu_key, f"{counted(gpus, 'GPU')}{of_type} on a node", remedy)


def _count(groups: list[NodeGroup]) -> int:
    return sum(group.nodes for group in groups)
