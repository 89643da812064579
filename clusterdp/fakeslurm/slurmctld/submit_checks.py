"""The checks for which slurmctld refuses a job at its submission.

A job that asks for more than its partition has is accepted and waits (EnforcePartLimits=NO).
"""

from __future__ import annotations

from ..core import constraints, error_texts
from ..core.error_texts import ControllerError
from ..core.job_desc import JobDesc
from ..core.model import Model, Node, Partition
from . import dependencies
from .node_selection import all_free, place

INVALID_MINIMUM = "Invalid time-min specification (exceeds job's time or other limits)"
INVALID_LIMIT = "Requested time limit is invalid (missing or exceeds some limit)"


def check(model: Model, desc: JobDesc, now: float) -> None:
    """Raises ControllerError if slurmctld refuses the job."""
    if not {*desc.nodelist, *desc.exclude} <= set(model.nodes) or set(desc.nodelist) & set(desc.exclude):
        raise ControllerError(error_texts.INVALID_NODE)
    _check_features(model, desc)
    of_nodes = [node.features for node in model.nodes.values()]
    if desc.prefer and not constraints.known(desc.prefer, of_nodes):
        takes_id = model.settings.release.bad_feature_takes_id
        raise ControllerError("Invalid preferred feature specification", numbered=takes_id)
    if desc.batch_features and not set(constraints.words(desc.batch_features)) <= set(
        constraints.words(desc.features or "")
    ):
        raise _numbered(model.settings.release.batch_refused)
    if desc.reservation and desc.reservation not in model.settings.reservations:
        raise _numbered("Requested reservation is invalid")
    if desc.licenses and not {each.split(":")[0] for each in desc.licenses.split(",")} <= {*model.settings.licenses}:
        raise ControllerError("Invalid license specification")
    if desc.deadline is not None and desc.deadline < now:
        raise ControllerError(INVALID_LIMIT)
    if misses_deadline(model, desc, now) and (desc.least_minutes > 1 or "time-min" not in desc.shown):
        raise ControllerError(INVALID_MINIMUM if "time-min" in desc.shown else INVALID_LIMIT)
    if desc.dependency:
        terms, _ = dependencies.parse(desc.dependency)
        if model.settings.release.refuses_unknown_dependency:
            dependencies.check_known(model, terms)
    if not desc.hold:  # Slurm looks for nodes of a held job only after its release
        for partition in (partitions := model.partitions_of(desc)):
            try:
                _check_configuration(model, desc, partition)
                break
            except ControllerError:
                if partition is partitions[-1]:
                    raise


def misses_deadline(model: Model, desc: JobDesc, now: float) -> bool:
    """Whether a job that waits has too little time left before its deadline."""
    least_s = desc.least_minutes * model.settings.minute_s
    return desc.deadline is not None and max(now, desc.begin or 0) + least_s > desc.deadline


def _check_features(model: Model, desc: JobDesc) -> None:
    """Raises ControllerError for invalid features. Slurm refuses counts (a*2&b*1) even if there are such nodes."""
    if not desc.features:
        return
    release = model.settings.release
    if not constraints.known(desc.features, [node.features for node in model.nodes.values()]):
        raise ControllerError(error_texts.INVALID_FEATURE, numbered=release.bad_feature_takes_id)
    if constraints.counted(desc.features):
        raise ControllerError(release.counted_features, numbered=release.bad_feature_takes_id)


def _numbered(text: str, said: str = "") -> ControllerError:
    return ControllerError(text, said, numbered=True)


def _check_configuration(model: Model, desc: JobDesc, partition: Partition) -> None:
    nodes = [model.nodes[name] for name in partition.nodes if name not in desc.exclude]
    if desc.nodes_asked and not desc.min_nodes:
        raise _numbered("Node count specification invalid")
    if not nodes:
        raise _numbered(error_texts.NODE_CONFIG)
    if oversized(model, desc, partition) and not model.settings.release.refuses_oversized:
        return
    if not _has_layout(desc, nodes):
        raise _numbered(error_texts.NODE_CONFIG, "Socket, core and/or thread specification can not be satisfied")
    if desc.cpus_of_a_node > max(node.cpus for node in nodes):
        raise _numbered(error_texts.NODE_CONFIG, "CPU count per node can not be satisfied")
    if oversized(model, desc, partition):
        raise _numbered(error_texts.NODE_CONFIG)
    if max(desc.mem_per_node or 0, desc.mem_per_cpu or 0) > max(node.memory_mb for node in nodes):
        raise _numbered(error_texts.NODE_CONFIG, "Memory specification can not be satisfied")
    if desc.features and not _has_features(desc, nodes):
        raise _numbered(error_texts.NODE_CONFIG)
    if not _has_gpus(desc, nodes):
        raise _numbered(error_texts.NODE_CONFIG)
    everything = all_free(model)
    fitting = [node for node in nodes if not desc.gpus.kind or node.gpu_type == desc.gpus.kind]
    if not place(desc, [everything[node.name] for node in fitting], model.settings.release):
        raise _numbered(error_texts.NODE_CONFIG)


def _has_features(desc: JobDesc, nodes: list[Node]) -> bool:
    wanted = constraints.alternatives(desc.features)
    return max(sum(constraints.has(node.features, each) for node in nodes) for each in wanted) >= desc.min_nodes


def _has_gpus(desc: JobDesc, nodes: list[Node]) -> bool:
    gpus = desc.gpus
    held = [node.gpus for node in nodes if not gpus.kind or node.gpu_type == gpus.kind]
    most = max(held, default=0)
    return max(gpus.per_node or 0, gpus.per_task or 0) <= most and (gpus.per_job or 0) <= sum(held)


def _has_layout(desc: JobDesc, nodes: list[Node]) -> bool:
    """Whether a node has the requested sockets, cores per socket and threads per core. On nodes of the fake, each CPU
    is a socket."""
    asked = [*desc.shown.get("extra-node-info", "").split(":"), "", ""][:3]
    for i, name in enumerate(("sockets-per-node", "cores-per-socket", "threads-per-core")):
        asked[i] = desc.shown.get(name) or asked[i]
    sockets, cores, threads = (int(word) if word.isdigit() else 1 for word in asked)
    return sockets <= max(node.cpus for node in nodes) and cores == threads == 1


def oversized(model: Model, desc: JobDesc, partition: Partition) -> str:
    """Returns the waiting reason of a job that asks for more than the partition has, or "" for any other job."""
    if desc.asked_cpus > sum(model.nodes[name].cpus for name in partition.nodes):
        return "PartitionConfig"
    return "PartitionNodeLimit" if desc.min_nodes > len(partition.nodes) else ""
