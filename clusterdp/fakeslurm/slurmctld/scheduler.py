"""The scheduler: schedule(model, now) decides which jobs start where, which jobs are preempted, and why other jobs
wait. `schedule` does not change the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.hostlist import compress
from ..core.job_desc import JobDesc
from ..core.model import JobRecord, Model, Partition, Share
from . import submit_checks
from .dependencies import dependency_state
from .node_selection import FreeNode, all_free, free_nodes, place

FOREVER = 365 * 24 * 3600.0
INVALID = "invalid"
RESERVED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@dataclass(frozen=True)
class StartJob:
    job: int
    shares: tuple[Share, ...]
    partition: str
    index: int | None = None  # the index of an array element


@dataclass(frozen=True)
class PreemptJob:
    job: int


@dataclass(frozen=True)
class KeepPending:
    job: int
    reason: str
    start: float | None = None  # the job's start if all other jobs run up to their time limits
    nodes: tuple[str, ...] = ()  # the nodes on which the job starts at this time


@dataclass(frozen=True)
class CancelInvalid:
    """The job's dependency can never be fulfilled, and the job has --kill-on-invalid-dep, so it is cancelled."""

    job: int


Decision = StartJob | PreemptJob | KeepPending | CancelInvalid


@dataclass
class _Cycle:
    """A scheduling cycle over all waiting jobs."""

    model: Model
    now: float
    free: dict[str, FreeNode]
    # by node: the time until which other jobs may use the node, and the partition tier of the job that reserved it
    reserved: dict[str, tuple[float, int]] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)  # partitions in which a job already waits for nodes
    decisions: list[Decision] = field(default_factory=list)
    pending: dict[int, KeepPending | CancelInvalid] = field(default_factory=dict)
    # by job for which nodes were looked for: the indexes that are not started yet
    left: dict[int, list[int | None]] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)  # by array: number of elements started in this cycle
    victims: set[int] = field(default_factory=set)

    def keep(self, job: JobRecord, reason: str, start: float | None = None, nodes: tuple[str, ...] = ()) -> str:
        invalid = reason == INVALID
        self.pending[job.id] = CancelInvalid(job.id) if invalid else KeepPending(job.id, reason, start, nodes)
        return reason

    def place(self, desc: JobDesc, candidates: list[FreeNode]) -> list[Share] | None:
        return place(desc, candidates, self.model.settings.release)


def schedule(model: Model, now: float) -> list[Decision]:
    """Returns decisions about all waiting jobs, in the order in which the controller must carry them out."""
    cycle = _Cycle(model, now, free_nodes(model))
    for job, partition in waiting(model):
        if job.het and not job.het.offset and job.id not in cycle.pending:
            _consider_together(cycle, model.components(job))
        elif not job.het:
            _consider(cycle, job, partition)
    return [*cycle.decisions, *(wait for wait in cycle.pending.values() if cycle.left.get(wait.job, True))]


def waiting(model: Model) -> list[tuple[JobRecord, Partition]]:
    """Returns the waiting jobs, each with each of its partitions, sorted by the tier of the partition, then by the
    priority of the job."""
    jobs = [job for job in model.jobs.live.values() if job.waits]
    pairs = [(job, partition) for job in jobs for partition in model.partitions_of(job.desc)]
    return sorted(pairs, key=lambda pair: (-pair[1].tier, -pair[0].priority, pair[0].id))


def _consider(cycle: _Cycle, job: JobRecord, partition: Partition) -> None:
    obstacle = _obstacle(cycle, job) or _obstacle_in(cycle, job, partition)
    if obstacle:
        if job.id not in cycle.left:  # else another partition may start the job, and its reason counts
            cycle.keep(job, obstacle)
        return
    left = cycle.left.setdefault(job.id, [*job.array.indexes] if job.array else [None])
    for index in [*left]:
        if job.array and _throttled(cycle, job):
            cycle.keep(job, "JobArrayTaskLimit")
            return
        shares = cycle.place(job.desc, _allowed(cycle, job, partition))
        if not shares:
            _wait_for_nodes(cycle, job, partition)
            return
        for share in shares:
            cycle.free[share.node] = cycle.free[share.node].less(share)
        if job.array:
            cycle.started[job.array.id] = cycle.started.get(job.array.id, 0) + 1
        cycle.decisions.append(StartJob(job.id, tuple(shares), partition.name, index))
        left.remove(index)


def _consider_together(cycle: _Cycle, components: list[JobRecord]) -> None:
    """Starts all components of a heterogeneous job at the same time, on different nodes."""
    obstacles = [_obstacle(cycle, job) or _obstacle_everywhere(cycle, job) for job in components]
    if any(obstacles):
        for job, obstacle in zip(components, obstacles, strict=True):
            cycle.keep(job, obstacle or "None")
        return
    found: list[StartJob] = []
    taken: set[str] = set()
    for job in components:
        partitions = [one for one in cycle.model.partitions_of(job.desc) if not _obstacle_in(cycle, job, one)]
        for partition in partitions:
            free = [free for free in _allowed(cycle, job, partition) if free.node.name not in taken]
            shares = cycle.place(job.desc, free)
            if shares:
                taken |= {share.node for share in shares}
                found.append(StartJob(job.id, tuple(shares), partition.name))
                break
        else:
            reason = _wait_for_nodes(cycle, job, partitions[-1])
            for other in components:
                if other is not job:
                    cycle.keep(other, reason)
            return
    for start in found:
        for share in start.shares:
            cycle.free[share.node] = cycle.free[share.node].less(share)
    cycle.decisions += reversed(found)  # the first component last, because its script needs the other nodes


def _obstacle(cycle: _Cycle, job: JobRecord) -> str:
    """Returns the reason why the job cannot start even if all nodes are free, or "" if the job could start."""
    if job.held:
        return job.held
    prospect = dependency_state(cycle.model, job, cycle.now)
    if prospect.impossible:
        return INVALID if job.desc.kill_on_invalid_dep else "DependencyNeverSatisfied"
    if not prospect.done:
        return "Dependency"
    if job.begin > cycle.now:
        return "BeginTime"
    if job.considered_from > cycle.now:
        return "None"
    return ""


def _obstacle_in(cycle: _Cycle, job: JobRecord, partition: Partition) -> str:
    if not partition.up:
        return "PartitionDown"
    if partition.max_minutes is not None and (job.desc.minutes or 0) > partition.max_minutes:
        return "PartitionTimeLimit"
    if job.desc.minutes == 0 and partition.max_minutes is not None:
        return "PartitionTimeLimit"
    everything = all_free(cycle.model)
    ever = [everything[name] for name in partition.nodes if name not in job.desc.exclude]
    if not cycle.place(job.desc, ever):
        most, each = job.desc.max_nodes, job.desc.tasks_per_node
        if most and each and most * each < (job.desc.tasks or 0):  # NumNodes was changed, and NumTasks was not
            return "BadConstraints"
        return submit_checks.oversized(cycle.model, job.desc, partition) or "PartitionConfig"
    return ""


def _obstacle_everywhere(cycle: _Cycle, job: JobRecord) -> str:
    found = [_obstacle_in(cycle, job, partition) for partition in cycle.model.partitions_of(job.desc)]
    return found[-1] if all(found) else ""


def _throttled(cycle: _Cycle, job: JobRecord) -> bool:
    if not job.array or not job.array.throttle:
        return False
    # A completing element still has its nodes, but does not count, because the next element may start.
    running = sum(1 for other in cycle.model.elements(job.array.id) if other.shares and not other.completing)
    return running + cycle.started.get(job.array.id, 0) >= job.array.throttle


def _allowed(cycle: _Cycle, job: JobRecord, partition: Partition) -> list[FreeNode]:
    """Returns the nodes on which the job may start now: usable nodes of its partition that no earlier job reserved."""
    end = cycle.now + _limit_s(cycle.model, job, partition)
    allowed = []
    for name in partition.nodes:
        if name in job.desc.exclude or not cycle.model.nodes[name].usable:
            continue
        if name in cycle.reserved and end > cycle.reserved[name][0]:
            continue
        allowed.append(cycle.free[name])
    return allowed


def _limit_s(model: Model, job: JobRecord, partition: Partition) -> float:
    minutes = job.desc.minutes if job.desc.minutes is not None else partition.max_minutes
    return minutes * model.settings.minute_s if minutes else FOREVER


def _wait_for_nodes(cycle: _Cycle, job: JobRecord, partition: Partition) -> str:
    """Returns the reason why the job waits. Reserves the nodes that will be free first, and preempts other jobs if
    allowed."""
    usable = [name for name in partition.nodes if cycle.model.nodes[name].usable and name not in job.desc.exclude]
    unusable = [name for name in partition.nodes if not cycle.model.nodes[name].usable]
    missing = [name for name in job.desc.nodelist if name in unusable]
    if not cycle.model.settings.release.drained_is_unavailable:
        down = [name for name in missing if cycle.model.nodes[name].down]
        if missing and not down:
            return cycle.keep(job, "ReqNodeNotAvail, May be reserved for other job")
        missing = down
    everything = all_free(cycle.model)
    if missing:
        return cycle.keep(job, f"ReqNodeNotAvail, UnavailableNodes:{compress(missing)}")
    if not cycle.place(job.desc, [everything[name] for name in usable]):
        return cycle.keep(job, RESERVED)
    kept_by_higher = any(name in cycle.reserved and cycle.reserved[name][1] > partition.tier for name in usable)
    reason = RESERVED if kept_by_higher else "Priority" if partition.name in cycle.blocked else "Resources"
    cycle.blocked.add(partition.name)
    victims = _victims(cycle, job, partition)
    for victim in victims:
        cycle.victims.add(victim.id)
        if victim.preempt_time is None:
            cycle.decisions.append(PreemptJob(victim.id))
    end, nodes = _reserve(cycle, job, partition, victims)
    soon = end is not None and end < cycle.now + FOREVER / 2
    return cycle.keep(job, reason, end if soon else None, nodes if soon else ())


def _preemptable(cycle: _Cycle, partition: Partition, victim: JobRecord) -> bool:
    other = cycle.model.partitions[victim.desc.partition]
    return victim.running and other.preempt != "OFF" and other.tier < partition.tier


def _victims(cycle: _Cycle, job: JobRecord, partition: Partition) -> list[JobRecord]:
    """Returns the running jobs to preempt for this job, or [] if preemption does not help or is not needed."""
    candidates = [j for j in cycle.model.holding() if _preemptable(cycle, partition, j) and j.id not in cycle.victims]
    # Jobs that are already being preempted come first: if they free enough nodes, no other job is preempted.
    candidates.sort(key=lambda j: (j.preempt_time is None, cycle.model.partitions[j.desc.partition].tier, j.priority))
    leaving = [j for j in cycle.model.holding() if j.completing]
    free = {name: cycle.free[name] for name in partition.nodes}
    for gone in leaving:
        _release(cycle, free, gone)
    if _would_fit(cycle, job, partition, free):
        return []
    taken: list[JobRecord] = []
    for victim in candidates:
        _release(cycle, free, victim)
        taken.append(victim)
        if _would_fit(cycle, job, partition, free):
            return _spare(cycle, job, partition, leaving, taken)
    return []


def _spare(
    cycle: _Cycle, job: JobRecord, partition: Partition, leaving: list[JobRecord], taken: list[JobRecord]
) -> list[JobRecord]:
    """Returns `taken`, the jobs to preempt, without jobs whose nodes are not needed."""
    for victim in list(taken):
        rest = [other for other in taken if other is not victim]
        free = {name: cycle.free[name] for name in partition.nodes}
        for gone in [*leaving, *rest]:
            _release(cycle, free, gone)
        if victim.preempt_time is None and _would_fit(cycle, job, partition, free):
            taken = rest
    return taken


def _release(cycle: _Cycle, free: dict[str, FreeNode], job: JobRecord) -> None:
    for share in job.shares:
        if share.node in free:
            free[share.node] = free[share.node].more(share)


def _would_fit(cycle: _Cycle, job: JobRecord, partition: Partition, free: dict[str, FreeNode]) -> list[Share] | None:
    names = [n for n in partition.nodes if cycle.model.nodes[n].usable and n not in job.desc.exclude]
    names = [n for n in names if n not in cycle.reserved]
    return cycle.place(job.desc, [free[name] for name in names])


def _reserve(
    cycle: _Cycle, job: JobRecord, partition: Partition, victims: list[JobRecord]
) -> tuple[float | None, tuple[str, ...]]:
    """Reserves the nodes that become free first when running jobs end. Returns the time when the nodes are free, and
    the nodes."""
    free = {name: cycle.free[name] for name in partition.nodes}
    ends = sorted(
        ((_end(cycle, other, victims), other.id, other) for other in cycle.model.holding()), key=lambda e: e[:2]
    )
    for end, _, other in ends:
        _release(cycle, free, other)
        shares = _would_fit(cycle, job, partition, free)
        if shares:
            for share in shares:
                cycle.reserved.setdefault(share.node, (end, partition.tier))
            return end, tuple(share.node for share in shares)
    return None, ()


def _end(cycle: _Cycle, job: JobRecord, victims: list[JobRecord]) -> float:
    if job.completing or job in victims:
        return cycle.now
    start = job.start if job.start is not None else cycle.now
    return start + (job.minutes * cycle.model.settings.minute_s if job.minutes else FOREVER)
