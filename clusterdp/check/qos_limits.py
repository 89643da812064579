"""What a QOS allows a job: that of the partition, and the job's own where that one has no such limit."""

from __future__ import annotations

from collections.abc import Iterator

from clusterdp.check.cluster_facts import ClusterFacts
from clusterdp.check.finding import Finding
from clusterdp.check.subject import Subject
from clusterdp.slurm.quantities import clock_of, seconds_of


def qos_findings(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    if cluster.enforces("limits"):
        yield from _of_time(subject, cluster, partition)
        yield from _of_size(subject, cluster, partition)
        yield from _of_number(subject, cluster, partition)


def _of_time(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    resources = subject.config.resources
    qos, said = cluster.qos_limit(resources, partition, "MaxWall")
    wall = seconds_of(said)
    if wall is not None and subject.time_s is not None and subject.time_s > wall:
        what = f"{resources.time} is more than the QOS {qos} allows: {said}"
        yield Finding("error", "resources.time", what, _outcome(cluster, qos), f'Write "{clock_of(wall)}" or less.')


def _of_size(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    resources, gpus = subject.config.resources, subject.config.resources.nodes * subject.gpus_per_node
    asked = {
        "node": ("resources.nodes", resources.nodes),
        "cpu": ("resources.cpus_per_task", resources.nodes * subject.cpus_per_node),
        "gres/gpu": (subject.gpu_key, gpus),
        f"gres/gpu:{subject.gpu_type}": (subject.gpu_key, gpus if subject.gpu_type else 0),
    }
    for field, whom in (("MaxTRES", ""), ("MaxTRESPU", " a user at a time")):
        for tres, (key, count) in asked.items():
            qos, most = cluster.qos_limit(resources, partition, field, tres)
            if most.isdecimal() and count > int(most):
                what = f"{count} ({tres}, of all nodes) are more than the QOS {qos} allows{whom}: {most}"
                yield Finding("error", key, what, _outcome(cluster, qos), "Ask for less, or name another QOS.")


def _of_number(subject: Subject, cluster: ClusterFacts, partition: str) -> Iterator[Finding]:
    qos, most = cluster.qos_limit(subject.config.resources, partition, "MaxSubmitPU")
    if most.isdecimal() and subject.elements > int(most):
        what = f"{subject.elements} elements are more jobs than the QOS {qos} allows a user: {most}"
        yield Finding("error", "sweep", what, "the array is refused", f"Sweep over {most} or fewer at a time.")


def _outcome(cluster: ClusterFacts, qos: str) -> str:
    denies = "DenyOnLimit" in cluster.qos.get(qos, {}).get("Flags", "")
    return "the job is refused (DenyOnLimit)" if denies else "the job waits for ever"
