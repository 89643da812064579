"""Where a job fits: pure arithmetic on free CPUs and GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import features
from .model import Model, Node, Share
from .spec import JobSpec


@dataclass(frozen=True)
class Free:
    """What nobody has of a node."""

    node: Node
    cpu_ids: tuple[int, ...]
    gpus: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return len(self.cpu_ids) == self.node.cpus

    def less(self, share: Share) -> "Free":
        return replace(
            self,
            cpu_ids=tuple(i for i in self.cpu_ids if i not in share.cpu_ids),
            gpus=tuple(i for i in self.gpus if i not in share.gpus),
        )


def free_nodes(model: Model) -> dict[str, Free]:
    free = {name: Free(node, tuple(range(node.cpus)), tuple(range(node.gpus))) for name, node in model.nodes.items()}
    for job in model.holding():
        for share in job.shares:
            if share.node in free:
                free[share.node] = free[share.node].less(share)
    return free


def all_free(model: Model) -> dict[str, Free]:
    """The cluster as if nothing ran and every node were well: what could ever be had."""
    return {name: Free(node, tuple(range(node.cpus)), tuple(range(node.gpus))) for name, node in model.nodes.items()}


def place(spec: JobSpec, candidates: Sequence[Free]) -> list[Share] | None:
    """Shares of as few nodes as will do (as many as allowed, for --nodes=MIN-MAX), or None if the job does not fit.

    `candidates` are in the order of the cluster and hold only nodes that the job may use, whatever their features.
    """
    for wanted in features.alternatives(spec.features):
        shares = _place(spec, [free for free in candidates if features.has(free.node.features, wanted)])
        if shares:
            return shares
    return None


def _place(spec: JobSpec, candidates: Sequence[Free]) -> list[Share] | None:
    roomy = [free for free in candidates if capacity(spec, free) > 0]
    names = {free.node.name for free in roomy}
    if not set(spec.nodelist) <= names:
        return None
    least = max(spec.min_nodes, len(spec.nodelist))
    most = len(roomy)
    if spec.max_nodes is not None:
        most = min(most, spec.max_nodes)
    wide = spec.max_nodes is not None and spec.max_nodes > spec.min_nodes
    sizes = range(most, least - 1, -1) if wide else range(least, most + 1)
    for size in sizes:
        chosen = _choose(spec, roomy, size)
        if chosen:
            return _share_out(spec, chosen)
    return None


def capacity(spec: JobSpec, free: Free) -> int:
    """The tasks that the node could take, 0 if it is of no use."""
    if spec.exclusive and not free.whole:
        return 0
    if len(free.cpu_ids) < max(spec.min_cpus or 0, (spec.cpus_per_gpu or 0) * (spec.gpus.per_node or 0)):
        return 0
    each = max(spec.cpus_per_task or 1, (spec.cpus_per_gpu or 0) * (spec.gpus.per_task or 0))
    tasks = len(free.cpu_ids) // each
    if spec.tasks_per_node:
        if tasks < spec.tasks_per_node and _tasks_on(spec, 1) >= spec.tasks_per_node:
            return 0
        tasks = min(tasks, spec.tasks_per_node)
    if spec.gpus.per_node and len(free.gpus) < spec.gpus.per_node:
        return 0
    if spec.gpus.per_job and not free.gpus:
        return 0
    if spec.gpus.per_task:
        tasks = min(tasks, len(free.gpus) // spec.gpus.per_task)
    return tasks


def _tasks_on(spec: JobSpec, size: int) -> int:
    if spec.tasks is not None:
        return spec.tasks
    return size * (spec.tasks_per_node or 1)


def _choose(spec: JobSpec, roomy: list[Free], size: int) -> list[Free] | None:
    """`size` of these nodes that hold all tasks and GPUs: the first ones, or the roomiest if those do not do."""
    tasks = _tasks_on(spec, size)
    if tasks < size:
        return None
    needed = [free for free in roomy if free.node.name in spec.nodelist]
    others = [free for free in roomy if free.node.name not in spec.nodelist]
    if needed:  # neighbours: those behind the ones that must be, then those before, from near to far
        last = max(i for i, free in enumerate(roomy) if free in needed)
        place_of = {free.node.name: i for i, free in enumerate(roomy)}
        others.sort(key=lambda free: (place_of[free.node.name] < last, abs(place_of[free.node.name] - last)))
    by_room = sorted(others, key=lambda free: -capacity(spec, free))
    orders = [others, by_room]
    if size == 1 and not needed:  # one node that has room for all is better than the first one
        orders = [[free] for free in others]
    for order in orders:
        chosen = [*needed, *order][:size]
        enough = sum(capacity(spec, free) for free in chosen) >= tasks
        gpus = sum(len(free.gpus) for free in chosen) >= (spec.gpus.per_job or 0)
        if len(chosen) == size and enough and gpus:
            position = {free.node.name: i for i, free in enumerate(roomy)}
            return sorted(chosen, key=lambda free: position[free.node.name])
    return None


def _share_out(spec: JobSpec, chosen: list[Free]) -> list[Share]:
    tasks = spread(spec.distribution, _tasks_on(spec, len(chosen)), [capacity(spec, free) for free in chosen])
    gpus_left = spec.gpus.per_job or 0
    shares = []
    for free, count in zip(chosen, tasks, strict=True):
        per_node = count if spec.tasks_per_node is None else spec.tasks_per_node
        cpus = free.node.cpus if spec.exclusive else per_node * (spec.cpus_per_task or 1)
        gpus = max(spec.gpus.per_node or 0, (spec.gpus.per_task or 0) * count)
        if spec.gpus.per_job and not spec.gpus.per_task and not spec.gpus.per_node:
            gpus = min(gpus_left, len(free.gpus))
            gpus_left -= gpus
        if spec.exclusive:
            gpus = len(free.gpus)
        else:
            cpus = max(cpus, spec.min_cpus or 0, (spec.cpus_per_gpu or 0) * gpus)
        shares.append(Share(free.node.name, cpus, count, list(free.gpus[:gpus]), list(free.cpu_ids[:cpus])))
    return shares


def spread(distribution: str | None, tasks: int, room: list[int]) -> list[int]:
    """How many tasks each node gets: it is filled while each further one gets at least one; cyclic deals them round."""
    counts = [0] * len(room)
    if (distribution or "").startswith("cyclic"):
        while tasks > 0:
            before = tasks
            for i, most in enumerate(room):
                if tasks and counts[i] < most:
                    counts[i] += 1
                    tasks -= 1
            if tasks == before:  # more tasks than room: overcommitted
                counts[0] += tasks
                tasks = 0
        return counts
    for i, most in enumerate(room):
        counts[i] = max(0, min(most, tasks - (len(room) - i - 1)))
        tasks -= counts[i]
    i = 0
    while tasks > 0:  # overcommitted
        counts[i % len(room)] += 1
        tasks -= 1
        i += 1
    return counts
