"""Selects the nodes of a job, and the CPUs and GPUs on each node, like Slurm's select/cons_tres for nodes of equal
weight with one thread per core (`choose_nodes` and `_eval_nodes` in job_test.c).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ..core import constraints
from ..core.job_desc import JobDesc
from ..core.model import Model, Node, Share
from ..core.release import Release


@dataclass(frozen=True)
class FreeNode:
    """The free resources of a node. `index` is the node's position in the cluster."""

    node: Node
    cpu_ids: tuple[int, ...]
    gpus: tuple[int, ...]
    index: int

    @property
    def whole(self) -> bool:
        return len(self.cpu_ids) == self.node.cpus

    def less(self, share: Share) -> FreeNode:
        return replace(
            self,
            cpu_ids=tuple(i for i in self.cpu_ids if i not in share.cpu_ids),
            gpus=tuple(i for i in self.gpus if i not in share.gpus),
        )

    def more(self, share: Share) -> FreeNode:
        return replace(
            self,
            cpu_ids=tuple(sorted({*self.cpu_ids, *share.cpu_ids})),
            gpus=tuple(sorted({*self.gpus, *share.gpus})),
        )


def free_nodes(model: Model) -> dict[str, FreeNode]:
    free = all_free(model)
    for job in model.holding():
        for share in job.occupied:
            if share.node in free:
                free[share.node] = free[share.node].less(share)
    return free


def all_free(model: Model) -> dict[str, FreeNode]:
    """Returns all nodes as if no job ran and every node were usable."""
    return {
        name: FreeNode(node, tuple(range(node.cpus)), tuple(range(node.gpus)), index)
        for index, (name, node) in enumerate(model.nodes.items())
    }


UNLIMITED = 1 << 30


@dataclass(frozen=True)
class SelectedNode:
    free: FreeNode
    cpus: int  # the maximum number of CPUs that the job gets on the node


def choose(desc: JobDesc, candidates: Sequence[FreeNode], release: Release) -> list[SelectedNode] | None:
    """Returns the nodes for a job, or None if too few are free. `candidates` and the result have the cluster's order of
    nodes."""
    even = release.spread_job_is_even and "spread-job" in desc.shown
    rooms = {free.index: room(desc, free, release) for free in candidates}
    roomy = [free for free in candidates if rooms[free.index] > 0]
    required = set(desc.nodelist)
    if desc.max_nodes is not None and len(required) > desc.max_nodes:  # a long --nodelist requires no node
        roomy, required = [free for free in roomy if free.node.name in required], set()
    least = max(
        desc.min_nodes, len(required), -(-max(tasks_of(desc), desc.kept_tasks) // (desc.tasks_per_node or UNLIMITED))
    )
    by_tasks = desc.tasks_asked or release.tasks_limit_nodes
    while len(roomy) >= least and sum(rooms[free.index] for free in roomy) >= all_cpus(desc):
        taken = _Selection(desc, roomy, rooms, required, least, even, by_tasks).made()
        if taken:
            return sorted(taken, key=lambda each: each.free.index)
        roomy = _without_smallest(desc, roomy, rooms, required, least)
    return None


def _without_smallest(
    desc: JobDesc, roomy: Sequence[FreeNode], rooms: dict[int, int], required: set[str], least: int
) -> list[FreeNode]:
    """Returns the nodes for the next try, without the nodes with the fewest free CPUs and GPUs. Returns [] if no try is
    left.
    """
    size = {free.index: rooms[free.index] + (len(free.gpus) if desc.gpus else 0) for free in roomy}
    small = min((size[free.index] for free in roomy if free.node.name not in required), default=0)
    surplus, left = len(roomy) - least, list[FreeNode]()
    for free in roomy:
        if surplus > 0 and size[free.index] <= small and free.node.name not in required:
            surplus -= 1
        else:
            left.append(free)
    return left if len(left) < len(roomy) else []


def room(desc: JobDesc, free: FreeNode, release: Release) -> int:
    """Returns the number of CPUs that the job could use on this node, or 0 if the job cannot use the node."""
    cpus = len(free.cpu_ids)
    if cpus < max(least_cpus(desc), _least_tasks(desc) * (desc.cpus_per_task or 1)) or (
        desc.exclusive and not free.whole
    ):
        return 0
    if release.cpus_of_whole_tasks and desc.cpus_per_task and not desc.exclusive:
        cpus -= cpus % desc.cpus_per_task
    if not desc.gpus:
        return cpus
    if desc.gpus.kind and free.node.gpu_type != desc.gpus.kind:
        return 0
    if len(free.gpus) < (desc.gpus.per_node or bool(desc.gpus.per_job)):
        return 0
    most = most_tasks(desc, free, release)
    of_gpus = (desc.cpus_per_gpu or 0) * min(len(free.gpus), desc.gpus.per_job or 0)
    return cpus if most is None else min(cpus, max(most * (desc.cpus_per_task or 1), of_gpus))


def most_tasks(desc: JobDesc, free: FreeNode, release: Release) -> int | None:
    """Returns the maximum number of tasks on this node for a job with GPUs, or None if the node has no such maximum."""
    if not desc.gpus:
        return None
    most: int | None = None
    if desc.tasks_per_node:
        most = desc.tasks_per_node
    elif desc.tasks == 1 or (desc.tasks == desc.min_nodes == desc.max_nodes):
        most = 1
    elif desc.max_nodes == 1:
        most = desc.tasks
    limits = [most] if most is not None else []
    if release.tasks_limit_each_node and desc.tasks:
        limits.append(desc.tasks)
    if desc.cpus_per_task:
        limits.append(len(free.cpu_ids) // desc.cpus_per_task)
    if desc.tasks_per_gpu:
        limits.append((desc.gpus.per_node or len(free.gpus)) * desc.tasks_per_gpu)
    if desc.gpus.per_task:
        limits.append(len(free.gpus) // desc.gpus.per_task)
    if release.gpus_share_tasks_out and _even(desc):
        per_job = desc.gpus.per_job or 1
        limits.append(min(len(free.gpus), per_job - desc.min_nodes + 1) * (desc.tasks or 1) // per_job)
    return min(limits, default=None)


def _even(desc: JobDesc) -> bool:
    """Whether the number of --gpus is a multiple of the number of --ntasks, or the other way round."""
    gpus, tasks = desc.gpus.per_job, desc.tasks
    return bool(gpus and tasks and not (gpus % tasks and tasks % gpus))


def least_cpus(desc: JobDesc) -> int:
    """Returns the minimum number of CPUs that each node of the job must have."""
    each = desc.cpus_per_task or 1
    tasks = desc.tasks_per_node if desc.tasks_per_node and (desc.tasks or 0) > 1 and not desc.overcommit else 1
    return max(desc.min_cpus or 0, tasks * each, (desc.cpus_per_gpu or 0) * (desc.gpus.per_node or 0))


def all_cpus(desc: JobDesc) -> int:
    """Returns the number of CPUs that the job needs on all its nodes together."""
    if desc.overcommit:
        return desc.min_nodes
    per_gpu = desc.cpus_per_gpu or 0
    for_gpus = per_gpu * max(desc.gpus.per_job or 0, (desc.gpus.per_task or 0) * (desc.tasks or 0))
    return max(tasks_of(desc) * (desc.cpus_per_task or 1), for_gpus)


def tasks_of(desc: JobDesc) -> int:
    return desc.tasks if desc.tasks is not None else desc.min_nodes * (desc.tasks_per_node or 1)


def _least_tasks(desc: JobDesc) -> int:
    """Returns the minimum number of tasks for which each node must have CPUs."""
    if desc.overcommit:
        return 1
    return desc.tasks_per_node or (desc.tasks or 1 if desc.max_nodes == 1 else 1)


@dataclass
class _Selection:
    """One try to select nodes: the nodes selected until now, and the CPUs, GPUs and nodes that are still needed."""

    desc: JobDesc
    roomy: Sequence[FreeNode]
    rooms: dict[int, int]
    required: set[str]
    least: int  # number of nodes that are still needed
    even: bool = False  # whether each node gets the same number of CPUs
    by_tasks: bool = True  # whether there are no more nodes than tasks
    taken: list[SelectedNode] = field(default_factory=list)
    most: int = UNLIMITED  # number of nodes that may still be added
    wanted_cpus: int = 0
    wanted_nodes: int = 0
    wanted_gpus: int = 0

    def made(self) -> list[SelectedNode] | None:
        desc = self.desc
        wished = self.least if desc.max_nodes is None else desc.max_nodes
        self.most = UNLIMITED if desc.max_nodes is None else desc.max_nodes
        if desc.tasks and self.by_tasks:
            self.most = min(self.most, max(desc.tasks, self.least))
        self.wanted_gpus = desc.gpus.per_job or 0
        self.wanted_nodes = (min if self.wanted_gpus else max)(self.least, wished)
        self.wanted_cpus = all_cpus(desc)
        needed = [free for free in self.roomy if free.node.name in self.required]
        if len(needed) < len(self.required) or len(needed) > self.most:
            return None
        for free in needed:
            self._take(free)
        sets = [each for each in _neighbours(self.roomy) if self._others(each)]
        while sets and self.most > 0 and not self.enough:
            best = max(sets, key=self._worth)
            sets.remove(best)
            self._take_from(best)
        return self.taken if self.least <= 0 and self.wanted_cpus <= 0 and self.wanted_gpus <= 0 else None

    @property
    def enough(self) -> bool:
        return self.wanted_nodes <= 0 and self.wanted_cpus <= 0 and self.wanted_gpus <= 0

    def _take(self, free: FreeNode) -> None:
        cpus = self.rooms[free.index]
        others = max(self.least - 1, 0)
        for_this = self.wanted_cpus - others  # each node that still follows needs at least one CPU
        if self.even:
            for_this = -(-self.wanted_cpus // (others + 1))
        if cpus > for_this and not self.desc.exclusive:
            cpus = max(for_this, least_cpus(self.desc))
        self.taken.append(SelectedNode(free, cpus))
        self.wanted_cpus -= cpus
        self.wanted_gpus -= self._gpus(free)
        self.wanted_nodes -= 1
        self.least -= 1
        self.most -= 1

    def _gpus(self, free: FreeNode) -> int:
        return self.desc.gpus.per_node or len(free.gpus)

    def _others(self, neighbours: list[FreeNode]) -> list[FreeNode]:
        return [free for free in neighbours if free.node.name not in self.required]

    def _worth(self, neighbours: list[FreeNode]) -> tuple[bool, bool, int]:
        """Returns the sort key of a set of neighbours. Best is a set with a required node, then the smallest set with
        enough CPUs and GPUs, then the largest set.
        """
        free = self._others(neighbours)
        cpus = sum(self.rooms[one.index] for one in free)
        does = cpus >= self.wanted_cpus and len(free) >= self.least
        does = does and sum(self._gpus(one) for one in free) >= self.wanted_gpus
        return len(free) < len(neighbours), does, -cpus if does else cpus

    def _take_from(self, neighbours: list[FreeNode]) -> None:
        first = next((i for i, free in enumerate(neighbours) if free.node.name in self.required), None)
        order: Iterable[FreeNode] = neighbours
        if first is not None:  # the order is upwards from the first required node, then downwards
            order = chain(neighbours[first:], reversed(neighbours[:first]))
        else:
            alone = [free for free in neighbours if self.wanted_nodes <= 1 and self._does_alone(free)]
            if alone:
                order = [min(alone, key=lambda free: self.rooms[free.index])]
            elif self.desc.gpus.per_job:  # nodes with the most GPUs come first
                order = sorted(neighbours, key=lambda free: -len(free.gpus))
        for free in order:
            if self.most <= 0 or self.enough:
                return
            too_small = first is None and self.most == 1 and self.rooms[free.index] < self.wanted_cpus
            if free.node.name not in self.required and not too_small:
                self._take(free)

    def _does_alone(self, free: FreeNode) -> bool:
        return self.rooms[free.index] >= self.wanted_cpus and self._gpus(free) >= self.wanted_gpus


def _neighbours(roomy: Sequence[FreeNode]) -> list[list[FreeNode]]:
    """Returns the free nodes as sets of neighbours: nodes with consecutive indexes."""
    found: list[list[FreeNode]] = []
    for free in roomy:
        if found and found[-1][-1].index == free.index - 1:
            found[-1].append(free)
        else:
            found.append([free])
    return found


def place(desc: JobDesc, candidates: Sequence[FreeNode], release: Release) -> list[Share] | None:
    """Returns the job's shares on as few nodes as possible (for --nodes=MIN-MAX: as many as allowed), or None if the
    job does not fit.

    `candidates`: the nodes that the job may use, in the cluster's order. `place` checks the features of these nodes.
    """
    for count in reversed(desc.node_counts):
        one = replace(desc, min_nodes=count, max_nodes=count, node_counts=[])
        if shares := place(one, candidates, release):
            return shares
    for wanted in [] if desc.node_counts else constraints.alternatives(desc.features):
        taken = choose(desc, [free for free in candidates if constraints.has(free.node.features, wanted)], release)
        if taken:
            return _share_out(desc, taken, release)
    return None


def _share_out(desc: JobDesc, taken: list[SelectedNode], release: Release) -> list[Share]:
    gpus_left = desc.gpus.per_job or 0
    shares = []
    for place, (each, (tasks, cpus)) in enumerate(zip(taken, _dealt(desc, taken, release), strict=True), 1):
        free = each.free
        gpus = max(desc.gpus.per_node or 0, (desc.gpus.per_task or 0) * tasks)
        if desc.gpus.per_job and not desc.gpus.per_task and not desc.gpus.per_node:
            gpus = min(gpus_left - (len(taken) - place), len(free.gpus))  # at least one GPU is left for each later node
            gpus_left -= gpus
        if desc.exclusive:
            gpus, cpus = len(free.gpus), free.node.cpus
        if desc.cpus_per_gpu and desc.tasks is None:
            cpus = desc.cpus_per_task or 1
        cpus = min(max(cpus, (desc.cpus_per_gpu or 0) * gpus), len(free.cpu_ids))
        most = most_tasks(desc, free, release)
        beside = free.cpu_ids if most is None else free.cpu_ids[-most * (desc.cpus_per_task or 1) :]
        shares.append(Share(free.node.name, cpus, tasks, list(free.gpus[:gpus]), list(beside[:cpus])))
    return shares


def _dealt(desc: JobDesc, taken: list[SelectedNode], release: Release) -> list[tuple[int, int]]:
    """Returns (tasks, CPUs) of each node: each round deals one task to each node with free CPUs (Slurm's dist_tasks.c).

    If no node has enough CPUs for another task, the remaining tasks are dealt to all nodes in turn. A node may get more
    CPUs than its tasks can use.
    """
    each = desc.cpus_per_task or 1
    size = len(taken)
    tasks_left = max(size * (desc.tasks_per_node or 1), all_cpus(desc), size * least_cpus(desc))
    if each > 1 and not desc.overcommit:
        tasks_left = size * desc.tasks_per_node if desc.tasks_per_node else tasks_left // each
    per_node = desc.tasks_per_node
    if release.deals_asked_tasks and desc.tasks_asked and desc.tasks and per_node:
        tasks_left = desc.tasks
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
