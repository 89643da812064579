"""Whether a partition has nodes of the shape that the config asks for, and how many of them are up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterdp.check.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.nodes import NodeGroup
from clusterdp.slurm.quantities import megabytes_of
from clusterdp.wording import counted

AWAY = re.compile(r"(down|drain|drng|fail|inval|maint|unk)|.*\*")  # states of sinfo in which a node takes no job


def node_findings(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    groups = [group for group in cluster.groups if group.partition == partition]
    wanted = subject.config.resources.nodes
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
    gpus, memory = subject.gpus_per_node, megabytes_of(resources.mem or "") or 0.0
    if gpus > group.gpus:
        key = _gpu_key(subject)
        remedy = f"Write {group.gpus} or less." if group.gpus else "Name a partition that has GPUs."
        return Misfit(gpus - group.gpus, key, f"{counted(gpus, 'GPU')} on a node", remedy)
    if gpus and subject.gpu_type and group.gpu_type and subject.gpu_type != group.gpu_type:
        return Misfit(
            1, _gpu_key(subject), f"GPUs of type {subject.gpu_type}", f"Those there are of type {group.gpu_type}."
        )
    if subject.cpus_per_node > group.cpus:
        asked = f"{ranks} x {resources.cpus_per_task} = {subject.cpus_per_node} CPUs on a node"
        most = group.cpus // ranks
        remedy = f"Write {most} or less (a node has {group.cpus})." if most else f"A node has {group.cpus} CPUs."
        return Misfit(subject.cpus_per_node - group.cpus, "resources.cpus_per_task", asked, remedy)
    if memory > group.memory_mb:
        remedy = f"Write {group.memory_mb}M or less."
        return Misfit(memory - group.memory_mb, "resources.mem", f"{resources.mem} on a node", remedy)
    wanted = resources.constraint or ""
    features = wanted.split("&") if re.fullmatch(r"[\w.-]+(&[\w.-]+)*", wanted) else []
    for feature in features:
        if feature not in group.features:
            remedy = f"A node there has: {', '.join(group.features) or 'none'}."
            return Misfit(1, "resources.constraint", f"the feature {feature}", remedy)
    return None


def _gpu_key(subject: Subject) -> str:
    names = ("gpus_per_node", "gpus_per_task", "gres")
    return next(f"resources.{name}" for name in names if getattr(subject.config.resources, name))


def _count(groups: list[NodeGroup]) -> int:
    return sum(group.nodes for group in groups)
