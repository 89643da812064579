"""Where a job fits, and what it gets there: pure arithmetic on free CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from clusterdp.fakeslurm.core import constraints
from clusterdp.fakeslurm.core.job_desc import JobDesc
from clusterdp.fakeslurm.core.model import Share
from clusterdp.fakeslurm.slurmctld.free_resources import FreeNode
from clusterdp.fakeslurm.slurmctld.node_selection import SelectedNode, all_cpus, choose, least_cpus, most_tasks


def place(desc: JobDesc, candidates: Sequence[FreeNode]) -> list[Share] | None:
    """Shares of as few nodes as will do (as many as allowed, for --nodes=MIN-MAX), or None if the job does not fit.

    `candidates` are in the order of the cluster and hold only nodes that the job may use, whatever their features.
    """
    for wanted in constraints.alternatives(desc.features):
        taken = choose(desc, [free for free in candidates if constraints.has(free.node.features, wanted)])
        if taken:
            return _share_out(desc, taken)
    return None


def _share_out(desc: JobDesc, taken: list[SelectedNode]) -> list[Share]:
    gpus_left = desc.gpus.per_job or 0
    shares = []
    for each, (tasks, cpus) in zip(taken, _dealt(desc, taken), strict=True):
        free = each.free
        gpus = max(desc.gpus.per_node or 0, (desc.gpus.per_task or 0) * tasks)
        if desc.gpus.per_job and not desc.gpus.per_task and not desc.gpus.per_node:
            gpus = min(gpus_left, len(free.gpus))
            gpus_left -= gpus
        if desc.exclusive:
            gpus, cpus = len(free.gpus), free.node.cpus
        cpus = min(max(cpus, (desc.cpus_per_gpu or 0) * gpus), len(free.cpu_ids))
        most = most_tasks(desc, free)
        beside = free.cpu_ids if most is None else free.cpu_ids[-most * (desc.cpus_per_task or 1) :]
        shares.append(Share(free.node.name, cpus, tasks, list(free.gpus[:gpus]), list(beside[:cpus])))
    return shares


def _dealt(desc: JobDesc, taken: list[SelectedNode]) -> list[tuple[int, int]]:
    """Tasks and CPUs on each node: one task for each, then round again where there is room (Slurm's dist_tasks.c).

    If CPUs are left over that are too few for a task on any node, tasks come on top of what is there, and with them a
    node may get more CPUs than its tasks can use.
    """
    each = desc.cpus_per_task or 1
    size = len(taken)
    tasks_left = max(size * (desc.tasks_per_node or 1), all_cpus(desc), size * least_cpus(desc))
    if each > 1 and not desc.overcommit:
        tasks_left = size * desc.tasks_per_node if desc.tasks_per_node else tasks_left // each
    if desc.overcommit:
        tasks_left = size
    tasks, cpus = [0] * size, [0] * size

    def add(i: int) -> None:
        tasks[i] += 1
        cpus[i] = min(cpus[i] + each, taken[i].cpus)

    for i in range(size):
        add(i)
    tasks_left -= size
    crowded = False
    while tasks_left > 0:
        space = False
        for i in range(size):
            full = taken[i].cpus - cpus[i] < each or tasks[i] == desc.tasks_per_node
            if tasks_left > 0 and (crowded or not full):
                add(i)
                tasks_left -= 1
                space = space or taken[i].cpus - cpus[i] >= each
        crowded = crowded or not space
    return list(zip(tasks, cpus, strict=True))
